/* step.c - what each step of a training asks of tensors and of random generators, without an interpreter's loop.
 *
 * An extension module in CPython's stable ABI of 3.7 (PEP 384), for whatever interpreter the training has. A step
 * finds nothing of ours in the processor's caches: what counts is how much code and memory it has to look at. */
#define Py_LIMITED_API 0x03070000
#include <Python.h>
#include <stdbool.h>

#include "../trail/trail.h"

static PyObject *name_of_grad, *name_of_params, *name_of_is_cpu, *name_of_is_contiguous, *name_of_nbytes,
    *name_of_dtype, *name_of_data_ptr, *name_of_random, *name_of_inst, *name_of_gauss_next, *name_of_mtrand,
    *name_of_rand;

static const struct {
    PyObject **at;
    const char *text;
} names[] = {
    {&name_of_grad, "grad"},
    {&name_of_params, "params"},
    {&name_of_is_cpu, "is_cpu"},
    {&name_of_is_contiguous, "is_contiguous"},
    {&name_of_nbytes, "nbytes"},
    {&name_of_dtype, "dtype"},
    {&name_of_data_ptr, "data_ptr"},
    {&name_of_random, "random"},
    {&name_of_inst, "_inst"},
    {&name_of_gauss_next, "gauss_next"},
    {&name_of_mtrand, "numpy.random.mtrand"},
    {&name_of_rand, "_rand"},
};

/* ---- gradients ------------------------------------------------------------------------------------------------- */

enum answer { FAILED = -1, NOT_FINITE, FINITE, UNKNOWN };

/* Whether something is True; -1 where it could not be had. Takes the reference. */
static int is_true(PyObject *value) {
    if (!value) return -1;
    int found = value == Py_True;
    Py_DECREF(value);
    return found;
}

/* A whole number; an exception is set where it could not be had. Takes the reference. */
static uint64_t number(PyObject *value) {
    if (!value) return 0;
    uint64_t found = PyLong_AsUnsignedLongLong(value);
    Py_DECREF(value);
    return found;
}

/* What DLPack has of a tensor, and the beginning of its exchange (dlpack.h, 1.3). */
struct dl_tensor {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
};

struct dl_exchange {
    uint32_t major, minor;
    struct dl_exchange *older;
    void *others[3];
    int (*from_object)(void *object, struct dl_tensor *tensor);
};

enum { DL_CPU = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_COMPLEX = 5 };

/* Tensors of this class are described by this function, once there is one: one call in the place of six. */
static PyObject *exchanged;
static int (*from_object)(void *object, struct dl_tensor *tensor);

/* The bytes of a tensor that lies in order, UINT64_MAX of another. */
static uint64_t bytes_in_order(const struct dl_tensor *tensor) {
    uint64_t count = 1;
    for (int32_t i = tensor->ndim; i-- > 0; count *= (uint64_t)tensor->shape[i])
        if (tensor->shape[i] != 1 && (uint64_t)tensor->strides[i] != count && count) return UINT64_MAX;
    return count * tensor->lanes * tensor->bits / 8;
}

static enum answer describe_exchanged(PyObject *object, uint64_t *address, struct rkt_numbers *numbers) {
    struct dl_tensor tensor;
    if (from_object(object, &tensor)) {
        PyErr_Clear(); /* a sparse one */
        return UNKNOWN;
    }
    if (tensor.device_type != DL_CPU) return UNKNOWN;
    numbers->bytes = bytes_in_order(&tensor);
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

/* Where the numbers of a tensor lie and what they are; UNKNOWN where they do not all lie here, in order. */
static enum answer describe(PyObject *tensor, PyObject *formats, uint64_t *address, struct rkt_numbers *numbers) {
    int is_here = is_true(PyObject_GetAttr(tensor, name_of_is_cpu));
    if (is_here > 0) is_here = is_true(PyObject_CallMethodObjArgs(tensor, name_of_is_contiguous, NULL));
    if (is_here <= 0) return is_here < 0 ? FAILED : UNKNOWN;
    numbers->bytes = number(PyObject_GetAttr(tensor, name_of_nbytes));
    PyObject *dtype = PyErr_Occurred() ? NULL : PyObject_GetAttr(tensor, name_of_dtype);
    if (!dtype) return FAILED;
    PyObject *format = PyDict_GetItem(formats, dtype);
    Py_DECREF(dtype);
    numbers->format = format ? PyLong_AsUnsignedLongLong(format) : RKT_OTHER;
    *address = number(PyObject_CallMethodObjArgs(tensor, name_of_data_ptr, NULL));
    return PyErr_Occurred() ? FAILED : FINITE;
}

static enum answer test(PyObject *tensor, PyObject *formats) {
    struct rkt_numbers numbers;
    uint64_t address, good;
    enum answer found = UNKNOWN;
    if ((PyObject *)Py_TYPE(tensor) == exchanged) found = describe_exchanged(tensor, &address, &numbers);
    if (found == UNKNOWN) found = describe(tensor, formats, &address, &numbers);
    if (found != FINITE) return found;
    if (numbers.bytes <= RKT_SMALL) {
        good = reprokit_trail_finite(&address, &numbers, 1);
    } else {
        Py_BEGIN_ALLOW_THREADS;
        good = reprokit_trail_finite(&address, &numbers, 1);
        Py_END_ALLOW_THREADS;
    }
    return good ? FINITE : NOT_FINITE;
}

static enum answer test_group(PyObject *parameters, PyObject *plain, PyObject *formats) {
    for (Py_ssize_t i = 0; i < PyList_Size(parameters); i++) {
        PyObject *gradient = PyObject_GetAttr(PyList_GetItem(parameters, i), name_of_grad);
        if (!gradient) return FAILED;
        enum answer found = FINITE;
        if (gradient != Py_None) found = (PyObject *)Py_TYPE(gradient) == plain ? test(gradient, formats) : UNKNOWN;
        Py_DECREF(gradient);
        if (found != FINITE) return found;
    }
    return FINITE;
}

static PyObject *finite_gradients(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *plain, *formats, *groups;
    if (!PyArg_UnpackTuple(arguments, "finite_gradients", 3, 3, &plain, &formats, &groups)) return NULL;
    if (!PyList_Check(groups)) Py_RETURN_NONE;
    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        PyObject *group = PyList_GetItem(groups, i);
        PyObject *parameters = PyDict_Check(group) ? PyDict_GetItem(group, name_of_params) : NULL;
        if (!parameters || !PyList_Check(parameters)) Py_RETURN_NONE;
        Py_INCREF(parameters);
        enum answer found = test_group(parameters, plain, formats);
        Py_DECREF(parameters);
        if (found == FAILED) return NULL;
        if (found == UNKNOWN) Py_RETURN_NONE;
        if (found == NOT_FINITE) Py_RETURN_FALSE;
    }
    Py_RETURN_TRUE;
}

static PyObject *use_exchange(PyObject *module, PyObject *plain) {
    (void)module;
    PyObject *capsule = PyObject_GetAttrString(plain, "__dlpack_c_exchange_api__");
    if (!capsule) return NULL;
    struct dl_exchange *exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    Py_DECREF(capsule);
    if (!exchange) return NULL;
    if (exchange->major != 1 || !exchange->from_object) Py_RETURN_FALSE;
    Py_INCREF(plain);
    Py_XDECREF(exchanged);
    exchanged = plain;
    from_object = exchange->from_object;
    Py_RETURN_TRUE;
}

/* ---- random generators ----------------------------------------------------------------------------------------- */

/* Whether a module that was not there still is not, or has the same under this name. */
static bool is_still(PyObject *modules, PyObject *module, PyObject *variables, PyObject *name, PyObject *value) {
    return variables == Py_None ? !PyDict_GetItem(modules, module) : PyDict_GetItem(variables, name) == value;
}

static PyObject *keep_generators(PyObject *module, PyObject *known) {
    (void)module;
    PyObject *modules, *of_random, *python, *own, *of_numpy, *numpy, *bits;
    unsigned long long bits_at, stretches_at, count, room;
    if (!PyArg_ParseTuple(known, "OOOOOOOKKKK", &modules, &of_random, &python, &own, &of_numpy, &numpy, &bits, &bits_at,
                          &stretches_at, &count, &room))
        return NULL;
    PyObject *result = Py_NotImplemented;
    if (is_still(modules, name_of_random, of_random, name_of_inst, python) &&
        is_still(modules, name_of_mtrand, of_numpy, name_of_rand, numpy) &&
        (!bits_at || *(PyObject **)(uintptr_t)bits_at == bits)) {
        reprokit_trail_keep((const struct rkt_stretch *)(uintptr_t)stretches_at, count, (uint8_t *)(uintptr_t)room);
        result = own == Py_None ? NULL : PyDict_GetItem(own, name_of_gauss_next);
        if (!result) result = Py_None;
    }
    Py_INCREF(result);
    return result;
}

/* ---- the module ------------------------------------------------------------------------------------------------ */

PyDoc_STRVAR(
    finite_gradients_text,
    "finite_gradients(plain, formats, param_groups)\n--\n\n"
    "Whether the gradients of all parameters are finite; None where one is not of the class `plain`, does not\n"
    "lie in this process' memory or is not contiguous. `formats` has the number (enum rkt_format) of each\n"
    "dtype whose numbers can be not finite.");
PyDoc_STRVAR(
    keep_generators_text,
    "keep_generators((modules, of_random, python, own, of_numpy, numpy, bits, bits_at, stretches, count,\n"
    "room))\n--\n\n"
    "Copy the memory of random states, if the global generators are still these: `python`, whose attributes\n"
    "are `own`, in the variables of its module, `numpy` in those of its own, and at `bits_at`, unless that is\n"
    "0, the address of `bits`. Variables are None of a module that was not in `modules`. It gives\n"
    "`gauss_next` of Python's; NotImplemented where a generator is another.");

PyDoc_STRVAR(use_exchange_text,
             "use_exchange(plain)\n--\n\n"
             "Have tensors of this class described by DLPack's exchange; whether it has one that is known.");

static PyMethodDef methods[] = {
    {"use_exchange", use_exchange, METH_O, use_exchange_text},
    {"finite_gradients", finite_gradients, METH_VARARGS, finite_gradients_text},
    {"keep_generators", keep_generators, METH_O, keep_generators_text},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "reprokit_step", NULL, -1, methods, NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit_reprokit_step(void) {
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        *names[i].at = PyUnicode_InternFromString(names[i].text);
        if (!*names[i].at) return NULL;
    }
    return PyModule_Create(&definition);
}
