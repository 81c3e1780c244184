// What the offered tools say about names and types of arguments. Pure functions over the request's tools.
#ifndef TF_FORMAT_TOOLCALL_SCHEMA_H
#define TF_FORMAT_TOOLCALL_SCHEMA_H

#include "base/buffer.h"
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

// The schema of the parameters of the function called name[0..n), or an object without properties where it has none;
// NULL when no such function is offered. Borrowed.
const json_t *toolcall_find_function(const json_t *tools, const char *name, size_t n);

// What a parameter's value may be, as bits.
enum {
    VALUE_STRING = 1,
    VALUE_NUMBER = 2,
    VALUE_INTEGER = 4,
    VALUE_BOOLEAN = 8,
    VALUE_NULL = 16,
    VALUE_OBJECT = 32,
    VALUE_ARRAY = 64,
    VALUE_ANY = 127,
};

// The bits of a type by its name in JSON Schema ("string", "array", ...); 0 for any other name.
unsigned toolcall_type_bits(const char *name);

// Whether `parameters` names key[0..n) among its properties, and the bits of its types: VALUE_STRING where the key is
// unknown, VALUE_ANY where its schema says nothing, or is too long to look through. Adds to *n_steps, which may be
// NULL, what it looked at.
bool toolcall_find_parameter(const json_t *parameters, const char *key, size_t n, unsigned *types, int64_t *n_steps);

// Appends the JSON of a value given as text: the text itself where it is JSON of one of the types (Python's True, False
// and None are understood), and a string of it otherwise. Where the types have strings beside others, only null,
// objects and arrays are taken from the text. False when memory is out.
bool toolcall_append_value(struct buffer *out, unsigned types, const char *text, size_t n);

// For text[0..n), a JSON object that parses: the place of the value of `key` at its top level, if there is one.
bool toolcall_find_member(const char *text, size_t n, const char *key, size_t *from, size_t *length);

#endif
