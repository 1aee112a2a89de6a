/* sanitizer_options.c - how the sanitizers run the shim's tests. Compiled into the shim they watch, so
 * that programs started with an empty environment have them too. */

#define OPTIONS(name, text) \
    __attribute__((visibility("default"))) const char *name(void) { return text; }

/* Without verify_asan_link_order the runtime may stand behind the shim, where calls reach the shim's
 * hooks first, as they do without it. The tiny programs free nothing at their end: no search for leaks. */
OPTIONS(__asan_default_options, "verify_asan_link_order=0:detect_leaks=0:detect_stack_use_after_return=1:exitcode=66")
OPTIONS(__ubsan_default_options, "halt_on_error=1:print_stacktrace=1:exitcode=66")
/* The hazards ask for entropy in signal handlers and fork in threads: that is what they try. Handlers of the
 * runtime's own would be set through the shim's sigaction before the runtime is ready for it. */
OPTIONS(__tsan_default_options, "exitcode=66:die_after_fork=0:report_signal_unsafe=0:handle_segv=0:handle_sigbus=0:"
                                "handle_abort=0:handle_sigill=0:handle_sigfpe=0")
