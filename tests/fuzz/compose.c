#include "compose.h"

/* Those of the shards in tests/data and of tests/kernel/wire_bytes.py, and some that are alike. */
const char *const NAMES[NAME_COUNT] = {
    "a", "b", "\xc3\xbc", "", "a longer name than others", "id", "numbers", "floats", "strings", "pair",
    "image", "label", "name", "a longer name then others", "numbert",
};

/* Beyond the room nothing is written: the message is cut off there, as a hostile one may be. */
struct writer {
    struct input *input;
    uint8_t *at, *end;
};

static void put(struct writer *to, uint8_t byte) {
    if (to->at < to->end) *to->at++ = byte;
}

static void put_varint(struct writer *to, uint64_t value) {
    for (; value > 127; value >>= 7) put(to, (uint8_t)value | 128);
    put(to, (uint8_t)value);
}

static uint8_t choose(struct writer *to, uint8_t limit) { return take_front(to->input) % limit; }

/* The input's end is the end of what is composed, however the grammar branches. */
static bool has_more(struct writer *to) { return to->input->size && to->at < to->end; }

enum part { RECORD, MAP, LIST_MAP, ENTRY, LIST_ENTRY, STEPS, FEATURE, STRINGS, FLOATS, INTS };

static void put_part(struct writer *to, enum part part, int most);

/* A field with its right size, seldom a wrong or an over-long one. */
static void put_delimited(struct writer *to, uint8_t field, enum part part, int most) {
    enum { SIZE_ROOM = 3 };
    put_varint(to, (uint32_t)field << 3 | 2);
    uint8_t *begin = to->at;
    if (to->end - begin < SIZE_ROOM) return;
    to->at += SIZE_ROOM;
    put_part(to, part, most);
    const size_t size = (size_t)(to->at - begin) - SIZE_ROOM;
    const uint8_t choice = take_front(to->input);
    struct writer head = {to->input, begin, begin + SIZE_ROOM};
    if (choice == 0xff) {
        put_varint(&head, size + 1);
    } else if (choice == 0xfe) {
        put(&head, (size & 127) | 128), put(&head, (size >> 7 & 127) | 128), put(&head, (uint8_t)(size >> 14));
    } else {
        put_varint(&head, size);
    }
    memmove(head.at, begin + SIZE_ROOM, size);
    to->at = head.at + size;
}

static void put_bytes(struct writer *to, uint8_t field, const char *text, size_t size) {
    put_varint(to, (uint32_t)field << 3 | 2);
    put_varint(to, size);
    for (size_t k = 0; k < size; k++) put(to, text ? (uint8_t)text[k] : take_front(to->input));
}

/* A field that means nothing: of any number and wire type, or groups in groups. */
static void put_noise(struct writer *to) {
    static const uint32_t fields[] = {1, 2, 3, 4, 9, 15, 16, 2048, (1u << 29) - 1};
    const uint8_t choice = take_front(to->input);
    const uint32_t field = fields[choose(to, sizeof fields / sizeof *fields)];
    const int depth = choice & 128 ? 1 + choose(to, 104) : 1;
    switch (choice & 7) {
    case 0:
        put_varint(to, field << 3), put_varint(to, take_front(to->input) * 0x0123456789abcdefu);
        break;
    case 1:
        put_varint(to, field << 3 | 1);
        for (int k = 0; k < 8; k++) put(to, take_front(to->input));
        break;
    case 2:
        put_bytes(to, field & 15, NULL, choose(to, 20));
        break;
    case 3:
        put_varint(to, field << 3 | 5);
        for (int k = 0; k < 4; k++) put(to, take_front(to->input));
        break;
    default:
        for (int k = 0; k < depth; k++) put_varint(to, field << 3 | 3);
        if (choice & 8) put_bytes(to, 5, NULL, choose(to, 4));
        for (int k = 0; k < depth; k++) put_varint(to, field << 3 | 4);
        break;
    }
}

static uint64_t integer(struct writer *to) {
    const uint8_t choice = take_front(to->input);
    if (choice < 0x80) return choice;
    return (uint64_t)take_front(to->input) << (choice & 63) | (choice & 64 ? 0 : UINT64_MAX << 56);
}

static void put_ints(struct writer *to) {
    const uint8_t choice = take_front(to->input);
    const int count = choice & 64 ? 60 + (choice & 31) : choice & 7;
    if (choice & 128) {
        for (int k = 0; k < count; k++) put(to, 8), put_varint(to, integer(to));
        return;
    }
    uint8_t packed[1024];
    struct writer values = {to->input, packed, packed + sizeof packed};
    for (int k = 0; k < count; k++) put_varint(&values, integer(to));
    put_bytes(to, 1, (const char *)packed, (size_t)(values.at - packed));
}

static void put_floats(struct writer *to) {
    const uint8_t choice = take_front(to->input);
    const int count = choice & 7;
    if (!(choice & 128)) {
        put_bytes(to, 1, NULL, 4 * (size_t)count + (choice == 0x7f));
        return;
    }
    for (int k = 0; k < count; k++) {
        put(to, 13);
        for (int j = 0; j < 4; j++) put(to, take_front(to->input));
    }
}

static void put_key(struct writer *to) {
    const uint8_t choice = take_front(to->input);
    const char *name = NAMES[choice % NAME_COUNT];
    if (choice < 0xf8)
        put_bytes(to, 1, name, strlen(name));
    else
        put_bytes(to, 1, NULL, choose(to, 20));
}

static void put_value(struct writer *to, enum part part) {
    put_delimited(to, 2, part == ENTRY ? FEATURE : STEPS, 1 + choose(to, 3));
}

/* Key and value; seldom in another order, either missing or repeated. */
static void put_entry(struct writer *to, enum part part) {
    static const char *const orders[] = {"kv", "kv", "kv", "kv", "vk", "k", "v", "", "kvv", "kkv", "vkvk", "nkv"};
    for (const char *order = orders[choose(to, sizeof orders / sizeof *orders)]; *order; order++) {
        if (*order == 'k') put_key(to);
        if (*order == 'v') put_value(to, part);
        if (*order == 'n') put_noise(to);
    }
}

static void put_item(struct writer *to, enum part part) {
    switch (part) {
    case RECORD:
        if (take_front(to->input) & 1)
            put_delimited(to, 1, MAP, 6);
        else
            put_delimited(to, 2, LIST_MAP, 4);
        break;
    case MAP:
        put_delimited(to, 1, ENTRY, 1);
        break;
    case LIST_MAP:
        put_delimited(to, 1, LIST_ENTRY, 1);
        break;
    case ENTRY:
    case LIST_ENTRY:
        put_entry(to, part);
        break;
    case STEPS:
        put_delimited(to, 1, FEATURE, 1);
        break;
    case FEATURE: {
        const uint8_t type = choose(to, 3);
        put_delimited(to, 1 + type, STRINGS + type, 1 + choose(to, 3));
        break;
    }
    case STRINGS:
        put_bytes(to, 1, NULL, choose(to, 12));
        break;
    case FLOATS:
        put_floats(to);
        break;
    case INTS:
        put_ints(to);
        break;
    }
}

static void put_part(struct writer *to, enum part part, int most) {
    for (int k = 0; k < most && has_more(to); k++) {
        if (take_front(to->input) >= 0xf0) put_noise(to);
        put_item(to, part);
    }
}

size_t compose(struct input *input, uint8_t *out, size_t room) {
    struct writer to = {input, out, out + room};
    put_part(&to, RECORD, 1 + choose(&to, 3));
    return (size_t)(to.at - out);
}
