/*
 * The logger that a plugin gets from init. It takes variable arguments, which stable Rust can pass
 * but not receive. It formats the line and passes the text on to Rust (src/logger.rs). Any thread
 * of the plugin may call it.
 */
#include <stdarg.h>
#include <stdio.h>

void nccl_net_host_log_line(int level, unsigned long flags, const char *file, int line, const char *text);

void nccl_net_host_logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

void nccl_net_host_logger(int level, unsigned long flags, const char *file, int line, const char *fmt, ...)
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
    nccl_net_host_log_line(level, flags, file != NULL ? file : "?", line, text);
}
