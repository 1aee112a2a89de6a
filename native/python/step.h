/* step.h - what the files of the extension module share: names of attributes, and access to the bytes of tensors.
 *
 * It uses CPython's stable ABI of 3.7 (PEP 384), for any interpreter that the training has. */
#ifndef REPROKIT_PYTHON_STEP_H
#define REPROKIT_PYTHON_STEP_H

#define Py_LIMITED_API 0x03070000
#include <Python.h>
#include <stdbool.h>

#define NAMES(NAME)                       \
    NAME(grad, "grad")                    \
    NAME(is_cpu, "is_cpu")                \
    NAME(is_contiguous, "is_contiguous")  \
    NAME(is_neg, "is_neg")                \
    NAME(float32, "float32")              \
    NAME(float64, "float64")              \
    NAME(locked, "locked")                \
    NAME(nbytes, "nbytes")                \
    NAME(dtype, "dtype")                  \
    NAME(shape, "shape")                  \
    NAME(data_ptr, "data_ptr")            \
    NAME(version, "_version")             \
    NAME(random, "random")                \
    NAME(gauss_next, "gauss_next")        \
    NAME(inst, "_inst")                   \
    NAME(mtrand, "numpy.random.mtrand")   \
    NAME(rand, "_rand")                   \
    NAME(compiling, "_is_compiling_flag") \
    NAME(bit_generator, "_bit_generator")
#define DECLARE_NAME(name, text) extern PyObject *name_of_##name;
NAMES(DECLARE_NAME)

/* DLPack's struct of a tensor, and the beginning of its exchange API (dlpack.h, 1.3). */
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

enum answer { FAILED = -1, NOT_FINITE, FINITE, UNKNOWN };

/* The class whose tensors, and parameters, rkp_from_object describes, once set: one call instead of six. */
extern PyObject *rkp_exchanged;
extern int (*rkp_from_object)(void *object, struct dl_tensor *tensor);

int rkp_is_true(PyObject *value);     /* -1 if value is NULL. Takes the reference. */
uint64_t rkp_number(PyObject *value); /* sets an exception on failure. Takes the reference. */
/* Describes a tensor of that class, or a parameter; false if it has no such description. */
bool rkp_describe(PyObject *object, struct dl_tensor *tensor);
uint64_t rkp_bytes_in_order(const struct dl_tensor *tensor); /* UINT64_MAX if it is not contiguous */
/* Returns PyTorch's negation flag: the numbers in memory are the negated ones. */
bool rkp_is_negative(PyObject *tensor);
/* Finds a tensor's bytes by its attributes; UNKNOWN if it is not contiguous in this process's memory. */
enum answer rkp_ask(PyObject *tensor, uint64_t *address, uint64_t *bytes);

/* tensors.c */
PyObject *rkp_use_exchange(PyObject *module, PyObject *plain);
PyObject *rkp_are_finite(PyObject *module, PyObject *arguments);
PyObject *rkp_loss_number(PyObject *module, PyObject *tensor);
PyObject *rkp_bytes_of(PyObject *module, PyObject *tensor);

/* calls.c */
void rkp_find_frame_functions(void);
PyObject *rkp_stack_key(PyObject *module, PyObject *depth);
PyObject *rkp_call_values(PyObject *module, PyObject *arguments);

/* The two classes of tensors that are read. */
struct classes {
    PyObject *plain, *parameter;
};

/* A cache of salts by dtype, shape and strides, and the function that computes them: None for a tensor with more than
 * bytes, or with gaps between them. */
struct salts {
    PyObject *cache, *compute;
};

/* trail.c */
/* Adds tensors to a digest; false if one cannot be digested in place. Appends a key of dtype and shape for each to
 * `keys`, if that is a list. */
bool rkp_fold_each(const struct classes *classes, const struct salts *salts, PyObject *tensors, uint64_t *digest,
                   PyObject *keys);
PyObject *rkp_layouts(PyObject *module, PyObject *arguments);
PyObject *rkp_reduce(PyObject *module, PyObject *arguments);
PyObject *rkp_changes(PyObject *module, PyObject *tensors);
PyObject *rkp_note_changes(PyObject *module, PyObject *event);
PyObject *rkp_same(PyObject *module, PyObject *arguments);
PyObject *rkp_fold(PyObject *module, PyObject *arguments);
PyObject *rkp_trail_batch(PyObject *module, PyObject *arguments);
PyObject *rkp_trail_loss(PyObject *module, PyObject *arguments);
PyObject *rkp_trail_input(PyObject *module, PyObject *arguments);
PyObject *rkp_random_states(PyObject *module, PyObject *arguments);
PyObject *rkp_trail_step(PyObject *module, PyObject *arguments);

/* number.c */
PyObject *rkp_loss_record(PyObject *module, PyObject *arguments);

/* events.c */
PyObject *rkp_tell(PyObject *module, PyObject *arguments);
PyObject *rkp_gate(PyObject *module, PyObject *arguments);

/* ledger.c */
PyObject *rkp_ledger_put(PyObject *module, PyObject *arguments);
PyObject *rkp_words(PyObject *module, PyObject *indices);
PyObject *rkp_rows_with_values(PyObject *module, PyObject *arguments);

#endif
