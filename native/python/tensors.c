/* tensors.c - where the numbers of tensors lie, and what single ones are.
 *
 * At a step none of this is in the CPU's caches, so the amount of code and memory that it touches decides its speed. */
#include <string.h>

#include "python/step.h"
#include "trail/trail.h"

#define DEFINE_NAME(name, text) PyObject *name_of_##name;
NAMES(DEFINE_NAME)

PyObject *rkp_exchanged;
int (*rkp_from_object)(void *object, struct dl_tensor *tensor);

int rkp_is_true(PyObject *value) {
    if (!value) return -1;
    int is_true = value == Py_True;
    Py_DECREF(value);
    return is_true;
}

uint64_t rkp_number(PyObject *value) {
    if (!value) return 0;
    uint64_t number = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return number;
}

bool rkp_describe(PyObject *object, struct dl_tensor *tensor) {
    if (!rkp_from_object(object, tensor)) return true;
    PyErr_Clear(); /* a sparse tensor */
    return false;
}

uint64_t rkp_bytes_in_order(const struct dl_tensor *tensor) {
    uint64_t count = 1;
    for (int32_t i = tensor->ndim; i-- > 0; count *= (uint64_t)tensor->shape[i])
        if (tensor->shape[i] != 1 && (uint64_t)tensor->strides[i] != count && count) return UINT64_MAX;
    return count * tensor->lanes * tensor->bits / 8;
}

enum answer rkp_ask(PyObject *tensor, uint64_t *address, uint64_t *bytes) {
    int is_here = rkp_is_true(PyObject_GetAttr(tensor, name_of_is_cpu));
    if (is_here > 0) is_here = rkp_is_true(PyObject_CallMethodObjArgs(tensor, name_of_is_contiguous, NULL));
    if (is_here <= 0) return is_here < 0 ? FAILED : UNKNOWN;
    *bytes = rkp_number(PyObject_GetAttr(tensor, name_of_nbytes));
    if (!PyErr_Occurred()) *address = rkp_number(PyObject_CallMethodObjArgs(tensor, name_of_data_ptr, NULL));
    return PyErr_Occurred() ? FAILED : FINITE;
}

bool rkp_is_negative(PyObject *tensor) {
    int is_negative = rkp_is_true(PyObject_CallMethodObjArgs(tensor, name_of_is_neg, NULL));
    PyErr_Clear();
    return is_negative;
}

/* ---- losses ---------------------------------------------------------------------------------------------------- */

PyObject *rkp_loss_number(PyObject *module, PyObject *tensor) {
    (void)module;
    struct dl_tensor shaped;
    if ((PyObject *)Py_TYPE(tensor) != rkp_exchanged || !rkp_describe(tensor, &shaped)) Py_RETURN_NONE;
    bool is_readable =
        shaped.device_type == DL_CPU && shaped.code == DL_FLOAT && (shaped.bits == 32 || shaped.bits == 64);
    if (!is_readable || rkp_bytes_in_order(&shaped) != shaped.bits / 8u || rkp_is_negative(tensor)) Py_RETURN_NONE;
    const char *at = (const char *)shaped.data + shaped.byte_offset;
    float single;
    double value;
    memcpy(&value, at, shaped.bits == 64 ? sizeof(value) : 0);
    if (shaped.bits == 32) value = (double)*(float *)memcpy(&single, at, sizeof(single));
    PyObject *exact = PyFloat_FromDouble(value);
    PyObject *result = exact ? PyTuple_Pack(2, shaped.bits == 32 ? name_of_float32 : name_of_float64, exact) : NULL;
    Py_XDECREF(exact);
    return result;
}

#define READ_ONLY 0x100 /* PyBUF_READ, for which this ABI has no name */

PyObject *rkp_bytes_of(PyObject *module, PyObject *tensor) {
    (void)module;
    struct dl_tensor shaped;
    if (!rkp_exchanged || !rkp_describe(tensor, &shaped)) Py_RETURN_NONE;
    bool is_readable = shaped.device_type == DL_CPU && shaped.code != DL_COMPLEX;
    uint64_t size = is_readable ? rkp_bytes_in_order(&shaped) : UINT64_MAX;
    if (!size || size == UINT64_MAX || !shaped.data || rkp_is_negative(tensor)) Py_RETURN_NONE;
    return PyMemoryView_FromMemory((char *)shaped.data + shaped.byte_offset, (Py_ssize_t)size, READ_ONLY);
}

/* ---- tensors --------------------------------------------------------------------------------------------------- */

static enum answer describe_by_exchange(PyObject *object, uint64_t *address, struct rkt_numbers *numbers) {
    struct dl_tensor tensor;
    if (!rkp_describe(object, &tensor) || tensor.device_type != DL_CPU) return UNKNOWN;
    numbers->bytes = rkp_bytes_in_order(&tensor);
    *address = (uint64_t)(uintptr_t)tensor.data + tensor.byte_offset;
    int bits = tensor.code == DL_COMPLEX ? tensor.bits / 2 : tensor.bits;
    if (tensor.code == DL_BFLOAT && bits == 16)
        numbers->format = RKT_BFLOAT16;
    else if (tensor.code == DL_FLOAT || tensor.code == DL_COMPLEX)
        numbers->format = bits == 16 ? RKT_FLOAT16 : bits == 32 ? RKT_FLOAT32 : bits == 64 ? RKT_FLOAT64 : RKT_FORMATS;
    else
        numbers->format = RKT_FORMATS;
    return numbers->format == RKT_FORMATS || numbers->bytes == UINT64_MAX ? UNKNOWN : FINITE;
}

/* Finds the address and format of a tensor's numbers; UNKNOWN if it is not contiguous in this process's memory. */
static enum answer describe_by_attributes(PyObject *tensor, PyObject *formats, uint64_t *address,
                                          struct rkt_numbers *numbers) {
    enum answer answer = rkp_ask(tensor, address, &numbers->bytes);
    PyObject *dtype = answer == FINITE ? PyObject_GetAttr(tensor, name_of_dtype) : NULL;
    if (!dtype) return answer == UNKNOWN ? UNKNOWN : FAILED;
    PyObject *format = PyDict_GetItem(formats, dtype);
    Py_DECREF(dtype);
    numbers->format = format ? PyLong_AsUnsignedLongLong(format) : RKT_OTHER;
    return PyErr_Occurred() ? FAILED : FINITE;
}

static enum answer test_finite(PyObject *tensor, PyObject *formats) {
    struct rkt_numbers numbers;
    uint64_t address, finite_count;
    enum answer answer = UNKNOWN;
    if ((PyObject *)Py_TYPE(tensor) == rkp_exchanged) answer = describe_by_exchange(tensor, &address, &numbers);
    if (answer == UNKNOWN) answer = describe_by_attributes(tensor, formats, &address, &numbers);
    if (answer != FINITE) return answer;
    if (numbers.bytes <= RKT_SMALL) {
        finite_count = reprokit_trail_finite(&address, &numbers, 1);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        finite_count = reprokit_trail_finite(&address, &numbers, 1);
        Py_END_ALLOW_THREADS;
    }
    return finite_count ? FINITE : NOT_FINITE;
}

PyObject *rkp_are_finite(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *plain, *formats, *tensors;
    if (!PyArg_ParseTuple(arguments, "OO!O!", &plain, &PyDict_Type, &formats, &PyList_Type, &tensors)) return NULL;
    enum answer answer = FINITE;
    for (Py_ssize_t i = 0; i < PyList_Size(tensors) && answer == FINITE; i++) {
        PyObject *tensor = PyList_GetItem(tensors, i);
        Py_INCREF(tensor); /* reading its attributes may run Python code */
        answer = (PyObject *)Py_TYPE(tensor) == plain ? test_finite(tensor, formats) : UNKNOWN;
        Py_DECREF(tensor);
    }
    if (answer == FAILED) return NULL;
    if (answer == UNKNOWN) Py_RETURN_NONE;
    return PyBool_FromLong(answer == FINITE);
}

PyObject *rkp_use_exchange(PyObject *module, PyObject *plain) {
    (void)module;
    PyObject *capsule = PyObject_GetAttrString(plain, "__dlpack_c_exchange_api__");
    if (!capsule) return NULL;
    struct dl_exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule);
    if (!exchange) return NULL;
    if (exchange->major != 1 || !exchange->from_object) Py_RETURN_FALSE;
    Py_INCREF(plain);
    Py_XDECREF(rkp_exchanged);
    rkp_exchanged = plain;
    rkp_from_object = exchange->from_object;
    Py_RETURN_TRUE;
}
