/*
 * The logger that a plugin is given. It is a printf with variadic arguments, which stable Rust can call but
 * not define, so the text is formatted here and handed over as one string.
 */
#include <stdarg.h>
#include <stdio.h>

/* In plugin/logger.rs. Any thread of the plugin may get here. */
void mpib_log_line(int level, unsigned long flags, const char *file, int line, const char *text);

void mpib_logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

void mpib_logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
{
    char text[2048];
    va_list args;

    if (fmt == NULL) {
        fmt = "(the plugin logged a NULL format)";
    }
    va_start(args, fmt);
    if (vsnprintf(text, sizeof text, fmt, args) < 0) {
        snprintf(text, sizeof text, "(a line that printf could not format)");
    }
    va_end(args);
    mpib_log_line(level, flags, file != NULL ? file : "?", line, text);
}
