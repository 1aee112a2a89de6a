// The theme's buttons to copy code are landmarks, which need names of their own.
new MutationObserver(() => {
  document.querySelectorAll(".md-code__nav").forEach((buttons, number) => {
    const name = `Code ${number + 1}`;
    if (buttons.ariaLabel !== name) buttons.ariaLabel = name;
  });
}).observe(document.documentElement, { childList: true, subtree: true });
