/* Serialized Examples and SequenceExamples to columns, in two passes.

   Measuring checks every byte of every record, decodes what has a place already (numbers and raw
   bytes, of the same count in every row), and finds how much memory the other columns need. The
   caller allocates exactly that, and filling decodes the others. So no size is ever taken from the
   input before the input's own bytes have borne it out.

   Source: tensorflow/core/example/example.proto. */
#ifndef SR_EXAMPLES_H
#define SR_EXAMPLES_H

#include "fault.h"
#include "list.h"
#include "names.h"
#include "rows.h"

/* How a feature's values become a column: streamrec.kernel.contract.ColumnKind. */
enum sr_kind { SR_FIXED = 0, SR_VARLEN = 1, SR_RAW = 2, SR_STEPS = 3 };

struct sr_plan {
    enum sr_kind kind;
    enum sr_type type;
    int64_t count; /* SR_FIXED: values a row. SR_RAW: bytes a row */
    bool may_lack; /* SR_FIXED and SR_RAW have the default then, SR_STEPS no steps */
    const uint8_t *values; /* the default's values as in a column; of strings, end to end */
    int64_t values_size;
    const int64_t *ends; /* of the default's strings */
};

/* What to parse out of each record: features first, then a SequenceExample's feature lists. */
struct sr_schema {
    struct sr_plan *plans;
    uint32_t features;
    uint32_t lists;
    bool is_sequence;
    struct sr_names feature_names;
    struct sr_names list_names;
};

/* Where a row's values are in its record, of a column that is filled later: a list, or with the flag
   the entry of the map in which a Feature is given in any other form, or a FeatureList. SR_NOWHERE:
   the record has none. */
#define SR_IS_ENTRY 0x80000000u
#define SR_NOWHERE UINT32_MAX
struct sr_span {
    uint32_t begin;
    uint32_t end;
};

/* A plan's column. */
struct sr_column {
    /* For measuring. */
    uint8_t *values;       /* SR_FIXED numbers, SR_RAW: all rows'; NULL: there can be none */
    int64_t *splits;       /* SR_VARLEN, SR_STEPS: [rows + 1] */
    struct sr_span *spans; /* of the columns that are filled: [rows] */
    /* What measuring gives, for the columns that are filled. */
    struct sr_size size;
    int64_t steps;
    /* For filling. */
    struct sr_sink sink;
    int64_t *step_ends; /* SR_STEPS: [steps] */
};

struct sr_finding {
    enum sr_fault fault;
    int64_t row;
    int64_t plan;   /* -1: the record as a whole */
    int64_t offset; /* in the record, -1 where it is not known */
};

/* Whether a plan's column is decoded while measuring. */
static inline bool sr_is_direct(const struct sr_plan *plan) {
    return plan->kind == SR_RAW || (plan->kind == SR_FIXED && plan->type != SR_STRINGS);
}

/* Measure; SR_NO_MEMORY where there is none for the work itself. */
struct sr_finding sr_measure(const struct sr_schema *schema, const struct sr_rows *rows, struct sr_column *columns);

/* Fill; false where the rows are no longer those that were measured. */
bool sr_fill(const struct sr_schema *schema, const struct sr_rows *rows, struct sr_column *columns);

#endif
