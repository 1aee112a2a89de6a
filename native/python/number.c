/* number.c - writes the record of a loss, like reprokit/agent/core/journal.py, for each step of a training. */
#include <string.h>

#include "python/step.h"

#define RECORD   32
#define CHECKED  28                  /* bytes of a record behind its check */
#define NO_EPOCH ((uint32_t)1 << 31) /* as a signed integer the least one */

/* The mapped end of the process's file (NumberRecords of journal.py). */
struct records {
    uint64_t address, used, size, lines;
};

static uint32_t crc32(const unsigned char *data, int size) {
    static const uint32_t table[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
                                       0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                       0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    uint32_t crc = ~(uint32_t)0;
    for (int i = 0; i < size; i++) {
        crc = crc >> 4 ^ table[(crc ^ data[i]) & 15];
        crc = crc >> 4 ^ table[(crc ^ data[i] >> 4) & 15];
    }
    return ~crc;
}

/* The check is written last: a record is whole or absent. */
static void write_record(struct records *records, uint32_t series, uint64_t step, uint64_t bits) {
    unsigned char *at = (unsigned char *)(uintptr_t)(records->address + records->used), record[CHECKED];
    uint32_t heads[3] = {series, (uint32_t)records->lines, NO_EPOCH};
    memcpy(record, heads, sizeof(heads));
    memcpy(record + 12, &step, 8);
    memcpy(record + 20, &bits, 8);
    uint32_t check = crc32(record, CHECKED);
    memcpy(at + 4, record, CHECKED);
    __atomic_store_n((uint32_t *)(void *)at, check ? check : 1, __ATOMIC_RELEASE);
    records->used += RECORD;
}

/* Writes a record atomically, as the GIL is held. Refuses it while another thread is writing, or was interrupted by the
 * code that writes this record. */
PyObject *rkp_loss_record(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *place, *guard, *series, *size, *step, *value;
    if (!PyArg_UnpackTuple(arguments, "loss_record", 6, 6, &place, &guard, &series, &size, &step, &value)) return NULL;
    struct records *records = PyLong_AsVoidPtr(place);
    uint64_t number = PyLong_AsUnsignedLongLong(series), bytes = PyLong_AsUnsignedLongLong(size), bits = 0;
    uint64_t at = PyLong_AsUnsignedLongLong(step);
    if (PyErr_Occurred()) return NULL;
    if (!PyFloat_CheckExact(value)) Py_RETURN_FALSE;
    if (!records->address || records->used + RECORD > records->size) Py_RETURN_FALSE;
    if (rkp_is_true(PyObject_CallMethodObjArgs(guard, name_of_locked, NULL))) {
        if (PyErr_Occurred()) return NULL;
        Py_RETURN_FALSE;
    }
    double full = PyFloat_AsDouble(value);
    float single = (float)full;
    memcpy(&bits, bytes == 4 ? (const void *)&single : (const void *)&full, bytes == 4 ? 4 : 8); /* little-endian */
    write_record(records, (uint32_t)number, at, bits);
    Py_RETURN_TRUE;
}
