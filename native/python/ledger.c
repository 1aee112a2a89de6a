/* ledger.c - appends the samples of a step to the agent's ledger buffer, from which they are written later. */
#include <string.h>

#include "step.h"

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
