/* line.c - writes the line of a loss in metrics.jsonl, like the agent's journal, for each step of a training.
 *
 * The decimal is the shortest that reads back as the same bits. It does not depend on the locale. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "python/step.h"

#define DIGITS  17
#define DECIMAL 48  /* maximum bytes of a decimal */
#define NUMBERS 200 /* maximum bytes of a line without its names, plus one */

/* A line under construction: text that does not fit is counted, but not written. */
struct text {
    char *at;
    uint64_t length, room;
};

static void add(struct text *text, const char *more, uint64_t size) {
    if (text->length + size <= text->room) memcpy(text->at + text->length, more, size);
    text->length += size;
}

static void add_text(struct text *text, const char *more) { add(text, more, strlen(more)); }

/* Avoids printf, whose code is not in the CPU's caches at a step. */
static void add_digits(struct text *text, uint64_t number, int least) {
    char digits[24];
    int at = sizeof(digits);
    for (; number || least > 0; number /= 10, least--) digits[--at] = (char)('0' + number % 10);
    add(text, digits + at, sizeof(digits) - (uint64_t)at);
}

static void add_number(struct text *text, uint64_t number) { add_digits(text, number, 1); }

struct decimal {
    char digits[DIGITS + 1];
    int count, exponent; /* of the first digit */
};

static struct decimal round_to_digits(double value, int count) {
    char scientific[DECIMAL];
    struct decimal result = {.count = 0};
    const char *at = scientific;
    snprintf(scientific, sizeof(scientific), "%.*e", count - 1, value < 0 ? -value : value);
    for (; *at && *at != 'e'; at++) /* skips the locale's decimal point */
        if (*at >= '0' && *at <= '9' && result.count < DIGITS) result.digits[result.count++] = *at;
    result.exponent = *at ? (int)strtol(at + 1, NULL, 10) : 0;
    while (result.count > 1 && result.digits[result.count - 1] == '0') result.count--;
    return result;
}

static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

/* Returns number * 10^power, correctly rounded: both are exact in a double, at most 2^53 and 10^22. */
static double scaled(double number, int power) { return power < 0 ? number / tens[-power] : number * tens[power]; }

static struct decimal decimal_of_integer(uint64_t number, int power) {
    struct decimal result = {.count = 0};
    char reversed[DIGITS + 1];
    int length = 0;
    for (; number && length < DIGITS; number /= 10) reversed[length++] = (char)('0' + number % 10);
    while (result.count < length) {
        result.digits[result.count] = reversed[length - 1 - result.count];
        result.count++;
    }
    result.exponent = power + length - 1;
    while (result.count > 1 && result.digits[result.count - 1] == '0') result.count--;
    return result;
}

/* Finds the shortest decimal of a single-precision number of usual size; false if this method does not apply. */
static bool shortest_single(double size, struct decimal *best) {
    if (!(size >= 1e-5 && size < 1e9)) return false;
    int exponent = size >= 1 ? 0 : -5; /* of the first digit */
    while (scaled(1, exponent + 1) <= size) exponent++;
    bool is_found = false;
    for (int count = 9; count >= 6; count--) {
        int power = exponent - count + 1;
        uint64_t number = (uint64_t)(scaled(size, -power) + 0.5);
        if ((float)scaled((double)number, power) != (float)size) break;
        *best = decimal_of_integer(number, power);
        is_found = true;
    }
    return is_found;
}

/* Parses a decimal as readers do: to a double, which may be rounded again. */
static double parse_decimal(const struct decimal *decimal) {
    char text[DECIMAL];
    snprintf(text, sizeof(text), "%.*se%d", decimal->count, decimal->digits, decimal->exponent - decimal->count + 1);
    return strtod(text, NULL);
}

static bool reads_as(const struct decimal *decimal, double value, bool is_single) {
    double read = parse_decimal(decimal), size = value < 0 ? -value : value;
    return is_single ? (float)read == (float)size : read == size;
}

static struct decimal shortest_decimal(double value, bool is_single) {
    struct decimal single;
    if (is_single && shortest_single(value < 0 ? -value : value, &single)) return single;
    int max_digits = is_single ? 9 : DIGITS, min_digits = is_single ? 6 : 15;
    struct decimal best = round_to_digits(value, max_digits);
    if (!reads_as(&best, value, is_single)) return round_to_digits(value, DIGITS);
    for (int count = max_digits - 1; count >= min_digits; count--) {
        struct decimal shorter = round_to_digits(value, count);
        if (!reads_as(&shorter, value, is_single)) break;
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
    struct decimal decimal = shortest_decimal(value, is_single);
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
    for (int shift = is_single ? 28 : 60; shift >= 0; shift -= 4) add(text, &"0123456789abcdef"[bits >> shift & 15], 1);
}

static void add_time(struct text *text, uint64_t microseconds) {
    add_number(text, microseconds / 1000000);
    add(text, ".", 1);
    add_digits(text, microseconds % 1000000, 6);
}

/* The agent's buffer of lines (reprokit/agent/core/buffered_lines.py). */
struct lines {
    uint64_t address, used, size;
};

/* Writes a line and returns its length. */
static uint64_t write_line(const struct lines *lines, const char *head, const char *name, const uint64_t facts[3],
                           double value, bool is_single) {
    struct text text = {(char *)(uintptr_t)lines->address + lines->used, 0, lines->size - lines->used};
    add_text(&text, head);
    add_number(&text, facts[0]);
    add_text(&text, ",\"t\":");
    add_time(&text, facts[1]);
    add_text(&text, name);
    add_number(&text, facts[2]);
    add_text(&text, is_single ? ",\"value\":{\"dtype\":\"float32\",\"bits\":\""
                              : ",\"value\":{\"dtype\":\"float64\",\"bits\":\"");
    add_bits(&text, value, is_single);
    add_text(&text, "\",\"decimal\":");
    add_decimal(&text, value, is_single);
    add_text(&text, "}}\n");
    return text.length;
}

static uint64_t microseconds(double epoch) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)((epoch + (double)now.tv_sec + (double)now.tv_nsec / 1e9) * 1e6);
}

/* Writes a line atomically, as the GIL is held. Refuses it while another thread is writing, or was interrupted by the
 * code that writes this line. */
PyObject *rkp_loss_line(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *place, *guard, *numbers, *epoch, *head, *name, *step, *dtype, *value;
    if (!PyArg_UnpackTuple(arguments, "loss_line", 9, 9, &place, &guard, &numbers, &epoch, &head, &name, &step, &dtype,
                           &value))
        return NULL;
    struct lines *lines = PyLong_AsVoidPtr(place);
    const char *head_text = PyBytes_AsString(head), *name_text = PyBytes_AsString(name);
    uint64_t facts[3] = {0, 0, PyLong_AsUnsignedLongLong(step)};
    double clock_offset = PyFloat_AsDouble(epoch);
    if (PyErr_Occurred()) return NULL;
    if (!PyUnicode_Check(dtype)) Py_RETURN_FALSE;
    bool is_single = !PyUnicode_CompareWithASCIIString(dtype, "float32");
    uint64_t room = strlen(head_text) + strlen(name_text) + NUMBERS;
    bool is_float = is_single || !PyUnicode_CompareWithASCIIString(dtype, "float64");
    if (!is_float || !PyFloat_CheckExact(value)) Py_RETURN_FALSE;
    if (!lines->address || lines->used + room >= lines->size) Py_RETURN_FALSE;
    if (rkp_is_true(PyObject_CallMethodObjArgs(guard, name_of_locked, NULL))) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_FALSE;
    }
    facts[1] = microseconds(clock_offset);
    facts[0] = rkp_number(PyIter_Next(numbers));
    if (PyErr_Occurred()) return NULL;
    lines->used += write_line(lines, head_text, name_text, facts, PyFloat_AsDouble(value), is_single);
    Py_RETURN_TRUE;
}
