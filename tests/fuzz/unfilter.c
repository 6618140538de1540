/* The filters of PNG's rows: undone as the standard words them, and in memory of just their size. */
#include "png.h"

#include "input.h"

/* ISO/IEC 15948, 9.4: of equals the left one goes first, then the one above. */
static int paeth(int left, int above, int corner) {
    const int guess = left + above - corner;
    const int by_left = abs(guess - left), by_above = abs(guess - above), by_corner = abs(guess - corner);
    if (by_left <= by_above && by_left <= by_corner) return left;
    return by_above <= by_corner ? above : corner;
}

static bool by_definition(const uint8_t *in, int64_t rows, int64_t size, int pixel, uint8_t *out) {
    for (int64_t row = 0; row < rows; row++, in += size + 1, out += size) {
        if (in[0] > 4) return false;
        for (int64_t k = 0; k < size; k++) {
            const int left = k < pixel ? 0 : out[k - pixel], above = row ? out[k - size] : 0;
            const int corner = row && k >= pixel ? out[k - size - pixel] : 0;
            const int guesses[] = {0, left, above, (left + above) / 2, paeth(left, above, corner)};
            out[k] = (uint8_t)(in[k + 1] + guesses[in[0]]);
        }
    }
    return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int pixels[] = {1, 2, 3, 4, 6, 8};
    struct input input = {data, size};
    const int pixel = pixels[take_below(&input, 6)];
    const int64_t row = (int64_t)take_below(&input, 40) * pixel, rows = (int64_t)input.size / (row + 1);
    uint8_t *filtered = copy_of(input.data, (size_t)(rows * (row + 1)));
    /* Most bytes name no filter: half of the inputs get one that there is. */
    if (take_bool(&input))
        for (int64_t k = 0; k < rows; k++) filtered[k * (row + 1)] %= 5;
    uint8_t *out = exactly((size_t)(rows * row)), *expected = exactly((size_t)(rows * row));
    const bool done = sr_unfilter(filtered, rows, row, pixel, out);
    CHECK(done == by_definition(filtered, rows, row, pixel, expected));
    CHECK(!done || !memcmp(out, expected, (size_t)(rows * row)));
    CHECK(!sr_unfilter(filtered, rows, row, 5, out));
    free(filtered);
    free(out);
    free(expected);
    return 0;
}
