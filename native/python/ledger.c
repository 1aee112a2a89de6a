/* ledger.c - appends the samples of a step to the agent's ledger buffer, from which they are written later, and says
 * which rows of a gradient hold a value other than zero. */
#include <string.h>

#include "python/step.h"

/* The agent's description of the buffer: its address, the number of appends, and the sizes of its two areas. */
struct ledger_area {
    uint64_t address, puts, entries, numbers;
};

/* The head of the buffer, and its areas (docs/format.md). */
struct ledger_head {
    uint64_t magic, first, entries, numbers, zeros[4];
    char areas[];
};

static bool append_samples(struct ledger_area *area, const char *entries, uint64_t size, const char *numbers,
                           uint64_t count) {
    struct ledger_head *head = (struct ledger_head *)(uintptr_t)area->address;
    if (!head || size > area->entries - head->entries || count > area->numbers - head->numbers) return false;
    memcpy(head->areas + area->entries + head->numbers, numbers, count);
    memcpy(head->areas + head->entries, entries, size);
    head->numbers += count;
    __atomic_store_n(&head->entries, head->entries + size, __ATOMIC_RELEASE); /* makes the samples visible to readers */
    area->puts++;
    return true;
}

/* Appends nothing while another thread holds the guard. */
PyObject *rkp_ledger_put(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long place;
    PyObject *guard, *entries, *numbers;
    if (!PyArg_ParseTuple(arguments, "KOSS", &place, &guard, &entries, &numbers)) return NULL;
    if (rkp_is_true(PyObject_CallMethodObjArgs(guard, name_of_locked, NULL))) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_FALSE;
    }
    return PyBool_FromLong(append_samples((struct ledger_area *)(uintptr_t)place, PyBytes_AsString(entries),
                                          (uint64_t)PyBytes_Size(entries), PyBytes_AsString(numbers),
                                          (uint64_t)PyBytes_Size(numbers)));
}

static bool fill_words(PyObject *indices, uint32_t *words) {
    for (Py_ssize_t i = 0; i < PyList_Size(indices); i++) {
        PyObject *index = PyList_GetItem(indices, i);
        unsigned long number = PyLong_Check(index) ? PyLong_AsUnsignedLong(index) : (unsigned long)-1;
        PyErr_Clear();
        if (number > UINT32_MAX) return false;
        words[i] = (uint32_t)number;
    }
    return true;
}

PyObject *rkp_words(PyObject *module, PyObject *indices) {
    (void)module;
    if (!PyList_Check(indices)) Py_RETURN_NONE;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, PyList_Size(indices) * (Py_ssize_t)sizeof(uint32_t));
    if (!bytes || fill_words(indices, (uint32_t *)(void *)PyBytes_AsString(bytes))) return bytes;
    Py_DECREF(bytes);
    Py_RETURN_NONE;
}

#define MAX_AXES 16

/* A tensor of floating-point numbers: bytes of an element, its axes, and their lengths and strides in elements. */
struct gradient {
    int64_t size, axes, lengths[MAX_AXES], strides[MAX_AXES];
};

/* A float's bits but for its sign are all zero only if it is zero. */
static bool is_zero(const char *element, int64_t size) {
    uint64_t bits = 0;
    memcpy(&bits, element, (size_t)size); /* little-endian: the sign is the last of these bits */
    return !(bits & ~(UINT64_C(1) << (8 * size - 1)));
}

/* Ends at the first value, so that a row normally costs one look. */
static bool has_value(const struct gradient *tensor, const char *at, int64_t axis, int64_t skipped) {
    if (axis == tensor->axes) return !is_zero(at, tensor->size);
    if (axis == skipped) return has_value(tensor, at, axis + 1, skipped);
    for (int64_t i = 0; i < tensor->lengths[axis]; i++)
        if (has_value(tensor, at + i * tensor->strides[axis] * tensor->size, axis + 1, skipped)) return true;
    return false;
}

static bool fill_integers(PyObject *integers, int64_t *values, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        values[i] = PyLong_AsLongLong(PyTuple_GetItem(integers, (Py_ssize_t)i)); /* borrowed */
    return !PyErr_Occurred();
}

PyObject *rkp_rows_with_values(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long address;
    long long size, axis;
    PyObject *lengths, *strides;
    if (!PyArg_ParseTuple(arguments, "KLOOL", &address, &size, &lengths, &strides, &axis)) return NULL;
    struct gradient tensor = {.size = size, .axes = PyTuple_Size(lengths)};
    if (tensor.axes < 0) return NULL;
    bool fits = (size == 2 || size == 4 || size == 8) && tensor.axes <= MAX_AXES && axis >= 0 && axis < tensor.axes;
    if (!fits || PyTuple_Size(strides) != tensor.axes) Py_RETURN_NONE;
    if (!fill_integers(lengths, tensor.lengths, tensor.axes) || !fill_integers(strides, tensor.strides, tensor.axes))
        return NULL;
    PyObject *rows = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)tensor.lengths[axis]);
    if (!rows) return NULL;
    char *row = PyBytes_AsString(rows);
    const char *begin = (const char *)(uintptr_t)address;
    for (int64_t i = 0; i < tensor.lengths[axis]; i++)
        row[i] = has_value(&tensor, begin + i * tensor.strides[axis] * size, 0, axis);
    return rows;
}
