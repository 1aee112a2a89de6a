"""Seals the keyframes, which the agents have written, and says what they lack."""

from __future__ import annotations

from reprokit.run.part import Closing, RunPart
from reprokit.run_files import keyframes

NONE = "no keyframe was kept: no step of PyTorch or TensorFlow reached the first of the interval (--keyframes)"


class KeyframesPart(RunPart):
    """The keyframes of a run."""

    def finish(self, closing: Closing) -> None:
        closing.run.keyframes = keyframes.seal(closing.path)
        kept = keyframes.read(closing.path)
        if not kept and not closing.ended.exit_code:
            closing.warn(NONE, "no-keyframe")
        for lack in dict.fromkeys(lack for keyframe in kept for lack in keyframe.lacks):
            closing.warn(f"a keyframe lacks {lack}", "keyframe-lacks")


PART = KeyframesPart
