/* line.c - the line of a loss in metrics.jsonl, as the agent's journal writes it, for each step of a training.
 *
 * The decimal is the shortest that means the same bits, up to the digits that always do. No locale has a say in it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "trail.h"

#define DIGITS  17
#define DECIMAL 48 /* bytes that a decimal may take */

/* A line in the making: what does not fit makes it too long, and is not written. */
struct text {
    char *at;
    uint64_t length, room;
};

static void add(struct text *text, const char *more, uint64_t size) {
    if (text->length + size <= text->room) memcpy(text->at + text->length, more, size);
    text->length += size;
}

static void add_text(struct text *text, const char *more) { add(text, more, strlen(more)); }

static void add_number(struct text *text, uint64_t number) {
    char digits[24];
    add(text, digits, (uint64_t)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)number));
}

struct decimal {
    char digits[DIGITS + 1];
    int count, exponent; /* of the first digit */
};

static struct decimal rounded(double value, int count) {
    char scientific[DECIMAL];
    struct decimal result = {.count = 0};
    const char *at = scientific;
    snprintf(scientific, sizeof(scientific), "%.*e", count - 1, value < 0 ? -value : value);
    for (; *at && *at != 'e'; at++) /* between them stands the locale's point */
        if (*at >= '0' && *at <= '9' && result.count < DIGITS) result.digits[result.count++] = *at;
    result.exponent = *at ? (int)strtol(at + 1, NULL, 10) : 0;
    while (result.count > 1 && result.digits[result.count - 1] == '0') result.count--;
    return result;
}

/* What a reader makes of it: a double, that is rounded again. */
static double meaning(const struct decimal *decimal) {
    char text[DECIMAL];
    snprintf(text, sizeof(text), "%.*se%d", decimal->count, decimal->digits, decimal->exponent - decimal->count + 1);
    return strtod(text, NULL);
}

static bool is_same(const struct decimal *decimal, double value, bool is_single) {
    double read = meaning(decimal), size = value < 0 ? -value : value;
    return is_single ? (float)read == (float)size : read == size;
}

static struct decimal shortest(double value, bool is_single) {
    int enough = is_single ? 9 : DIGITS, least = is_single ? 6 : 15;
    struct decimal best = rounded(value, enough);
    if (!is_same(&best, value, is_single)) return rounded(value, DIGITS);
    for (int count = enough - 1; count >= least; count--) {
        struct decimal shorter = rounded(value, count);
        if (!is_same(&shorter, value, is_single)) break;
        best = shorter;
    }
    return best;
}

static void add_zeros(struct text *text, int count) {
    for (int i = 0; i < count; i++) add(text, "0", 1);
}

static void add_plain(struct text *text, const struct decimal *decimal) {
    int whole = decimal->exponent + 1;
    if (whole <= 0) {
        add_text(text, "0.");
        add_zeros(text, -whole);
        add(text, decimal->digits, (uint64_t)decimal->count);
    } else if (whole >= decimal->count) {
        add(text, decimal->digits, (uint64_t)decimal->count);
        add_zeros(text, whole - decimal->count);
        add_text(text, ".0");
    } else {
        add(text, decimal->digits, (uint64_t)whole);
        add_text(text, ".");
        add(text, decimal->digits + whole, (uint64_t)(decimal->count - whole));
    }
}

static void add_decimal(struct text *text, double value, bool is_single) {
    if (value - value != 0) {
        add_text(text, "null");
        return;
    }
    struct decimal decimal = shortest(value, is_single);
    if (signbit(value)) add_text(text, "-");
    if (decimal.exponent >= -5 && decimal.exponent < 16) {
        add_plain(text, &decimal);
        return;
    }
    char exponent[16];
    add(text, decimal.digits, (uint64_t)decimal.count);
    snprintf(exponent, sizeof(exponent), "e%d", decimal.exponent - decimal.count + 1);
    add_text(text, exponent);
}

static void add_bits(struct text *text, double value, bool is_single) {
    float single = (float)value;
    uint64_t bits = 0;
    memcpy(&bits, is_single ? (const void *)&single : (const void *)&value, is_single ? 4 : 8); /* little-endian */
    char hexadecimal[20];
    int length = snprintf(hexadecimal, sizeof(hexadecimal), "%0*llx", is_single ? 8 : 16, (unsigned long long)bits);
    add(text, hexadecimal, (uint64_t)length);
}

static void add_time(struct text *text, uint64_t microseconds) {
    char time[32];
    int length = snprintf(time, sizeof(time), "%llu.%06u", (unsigned long long)(microseconds / 1000000),
                          (unsigned)(microseconds % 1000000));
    add(text, time, (uint64_t)length);
}

/* Writes the line and gives its length; one that is longer than the room was not written whole. */
RK_EXPORT uint64_t reprokit_trail_loss_line(const struct rkt_loss *loss) {
    bool is_single = loss->format == RKT_FLOAT32;
    struct text text = {(char *)(uintptr_t)loss->to, 0, loss->room};
    add_text(&text, (const char *)(uintptr_t)loss->head);
    add_number(&text, loss->number);
    add_text(&text, ",\"t\":");
    add_time(&text, loss->microseconds);
    add_text(&text, (const char *)(uintptr_t)loss->name);
    add_number(&text, loss->step);
    add_text(&text, is_single ? ",\"value\":{\"dtype\":\"float32\",\"bits\":\""
                              : ",\"value\":{\"dtype\":\"float64\",\"bits\":\"");
    add_bits(&text, loss->value, is_single);
    add_text(&text, "\",\"decimal\":");
    add_decimal(&text, loss->value, is_single);
    add_text(&text, "}}\n");
    return text.length;
}
