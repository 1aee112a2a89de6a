/* step.c - an extension module: what the agent needs of tensors and random generators at each step of a training.
 *
 * At a step none of this is in the CPU's caches, so the amount of code and memory that it touches decides its speed. */
#include <string.h>

#include "python/step.h"

#define DEFINE_NAME(name, text) PyObject *name_of_##name;
NAMES(DEFINE_NAME)

#define LIST_NAME(name, text) {&name_of_##name, text},
static const struct {
    PyObject **at;
    const char *text;
} names[] = {NAMES(LIST_NAME)};

/* ---- tensors --------------------------------------------------------------------------------------------------- */

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

static PyObject *loss_number(PyObject *module, PyObject *tensor) {
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

static PyObject *bytes_of(PyObject *module, PyObject *tensor) {
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

static PyObject *are_finite(PyObject *module, PyObject *arguments) {
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

static PyObject *use_exchange(PyObject *module, PyObject *plain) {
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

/* ---- the module ------------------------------------------------------------------------------------------------ */

PyDoc_STRVAR(
    finite_text,
    "finite(plain, formats, tensors)\n--\n\n"
    "Whether the tensors of a list are finite; None where one is not of the class `plain`, does not lie in this\n"
    "process' memory or is not contiguous. `formats` has the number (enum rkt_format) of each dtype whose\n"
    "numbers can be not finite.");

PyDoc_STRVAR(use_exchange_text,
             "use_exchange(plain)\n--\n\n"
             "Have tensors of this class described by DLPack's exchange; whether it has one that is known.");

PyDoc_STRVAR(layouts_text,
             "layouts((plain, parameter), tensors)\n--\n\n"
             "Describe a list of tensors: bytes that differ if their number, a dtype or a shape does, and a struct\n"
             "rkt_array for each. None where one is not of the classes `plain` and `parameter`, not float32 or\n"
             "float64, empty, not contiguous, or not in this process' memory.");
PyDoc_STRVAR(
    reduce_text,
    "reduce(arrays, wanted)\n--\n\n"
    "Reduce struct rkt_arrays that follow each other, as reprokit_trail_reduce does; None for reductions that\n"
    "are not wanted.");
PyDoc_STRVAR(changes_text, "changes(tensors)\n--\n\n"
                           "How often these tensors were changed in place, together.");
PyDoc_STRVAR(same_text, "same(left, right)\n--\n\nWhether two lists have the same objects.");
PyDoc_STRVAR(fold_text, "fold((plain, parameter, salts, salt_of), before, tensors)\n--\n\n"
                        "The digest so far, with that of these tensors of the classes `plain` and `parameter`; None\n"
                        "where the bytes of one are not all that it is. `salts` has what salt_of(tensor) gave.");
PyDoc_STRVAR(
    trail_batch_text,
    "trail_batch((plain, parameter, salts, salt_of), facts, batch)\n--\n\n"
    "Add a list or tuple of a few tensors of the classes `plain` and `parameter` to the batch in `facts`, the\n"
    "address of a struct rkt_facts. It gives each tensor and how often it was changed; None where the bytes\n"
    "of one are not all that it is, and nothing was added. `salts` has what salt_of(tensor) gave.");
PyDoc_STRVAR(trail_loss_text, "trail_loss((plain, parameter, salts, salt_of), facts, loss)\n--\n\n"
                              "Add a loss likewise; whether it was.");
PyDoc_STRVAR(trail_input_text,
             "trail_input(facts, fetched, arguments)\n--\n\n"
             "Add a call, where its one argument is the first tensor that trail_batch gave and nobody has changed it;\n"
             "whether it is, and no other call was added since a step.");
PyDoc_STRVAR(
    trail_step_text,
    "trail_step((plain, parameter), (now, seen, seen_size, state, size, salt, refresh),\n"
    "(modules, python, python_at, numpy, numpy_at, words_salt), (series, take, seen, pointers), parameters, facts,\n"
    "flags, how, before, buffers, torch_more)\n--\n\n"
    "Write down a step by `take` (reprokit_trail_step), if all can be read where it lies: tensors of the classes\n"
    "`plain` and `parameter`, parameters where `seen` says, the generators of `modules` that are named.\n"
    "refresh() copies the state of PyTorch's generator to `state` when `now` is not what was `seen`. It gives the\n"
    "ticket, how often the parameters were changed, and the gradients, which must live as long as they are read,\n"
    "and begins `facts` anew; None where nothing was written. Of None as parameters no pointers are set.");
PyDoc_STRVAR(number_text, "number(tensor)\n--\n\n"
                          "What tensors.number() says of it; None of one that it does not describe.");
PyDoc_STRVAR(bytes_of_text, "bytes_of(tensor)\n--\n\n"
                            "The bytes of a tensor of the class that is described, or a parameter, as long as it\n"
                            "lives; None of one whose bytes are not all that it is, or do not lie here, in order.");
PyDoc_STRVAR(loss_line_text, "loss_line(lines, guard, numbers, epoch, head, name, step, dtype, value)\n--\n\n"
                             "Write the line of a loss where lines wait, if there is room and nobody else writes\n"
                             "there: whether it did. `lines` is the address of their place, its used bytes and size.");

PyDoc_STRVAR(ledger_put_text, "ledger_put(waiting, guard, entries, numbers)\n--\n\n"
                              "Put the samples of a step where they wait, if there is room and nobody else writes\n"
                              "there: whether it did. `waiting` is the address of its place, count of puts and room.");
PyDoc_STRVAR(words_text, "words(indices)\n--\n\n"
                         "A list of integers below 2^32 as words of 32 bits; None of anything else.");
PyDoc_STRVAR(
    rows_with_values_text,
    "rows_with_values(address, size, lengths, strides, axis)\n--\n\n"
    "For each row along an axis of a tensor of floats in host memory, a byte: 1 if the row holds a value other\n"
    "than zero. `size` is that of an element in bytes, strides are in elements; None if it cannot be read.");

PyDoc_STRVAR(stack_key_text,
             "stack_key(depth)\n--\n\n"
             "Codes and instructions of the caller's frames, without the innermost `depth`, as bytes; None\n"
             "before CPython 3.11. Codes are identified by address.");
PyDoc_STRVAR(
    call_values_text,
    "call_values((plain, parameter, salts, salt_of, texts, text_digest), values)\n--\n\n"
    "The tensors among the values of an operator call, keys of their dtypes and shapes, and the digest of all\n"
    "values; None where one cannot be read in place. text_digest(others) gives that of the other values, unless\n"
    "`texts` has it.");
PyDoc_STRVAR(random_states_text,
             "random_states((modules, python, python_at, numpy, numpy_at, words_salt), gauss_offset)\n--\n\n"
             "Copies of Python's state and its `gauss_next`, of NumPy's, and of the second normal number that NumPy's\n"
             "RandomState has at this offset; None where the generators are not these, or one is not known.");

static PyMethodDef methods[] = {
    {"use_exchange", use_exchange, METH_O, use_exchange_text},
    {"finite", are_finite, METH_VARARGS, finite_text},
    {"number", loss_number, METH_O, number_text},
    {"bytes_of", bytes_of, METH_O, bytes_of_text},
    {"layouts", rkp_layouts, METH_VARARGS, layouts_text},
    {"reduce", rkp_reduce, METH_VARARGS, reduce_text},
    {"changes", rkp_changes, METH_O, changes_text},
    {"same", rkp_same, METH_VARARGS, same_text},
    {"fold", rkp_fold, METH_VARARGS, fold_text},
    {"trail_batch", rkp_trail_batch, METH_VARARGS, trail_batch_text},
    {"trail_loss", rkp_trail_loss, METH_VARARGS, trail_loss_text},
    {"trail_input", rkp_trail_input, METH_VARARGS, trail_input_text},
    {"random_states", rkp_random_states, METH_VARARGS, random_states_text},
    {"trail_step", rkp_trail_step, METH_VARARGS, trail_step_text},
    {"loss_line", rkp_loss_line, METH_VARARGS, loss_line_text},
    {"ledger_put", rkp_ledger_put, METH_VARARGS, ledger_put_text},
    {"words", rkp_words, METH_O, words_text},
    {"rows_with_values", rkp_rows_with_values, METH_VARARGS, rows_with_values_text},
    {"stack_key", rkp_stack_key, METH_O, stack_key_text},
    {"call_values", rkp_call_values, METH_VARARGS, call_values_text},
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
    rkp_find_frame_functions();
    return PyModule_Create(&definition);
}
