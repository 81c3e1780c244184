// Linked into every test program: what the sanitizers should do, so that a program behaves alike however it is started.

const char *__asan_default_options(void);
const char *__ubsan_default_options(void);
const char *__tsan_default_options(void);

// Absurd sizes are part of the tests: malloc must answer NULL to them, as it does without a sanitizer.
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:detect_leaks=1:detect_stack_use_after_return=1";
}

const char *__ubsan_default_options(void) { return "print_stacktrace=1"; }

const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1:halt_on_error=1:second_deadlock_stack=1";
}
