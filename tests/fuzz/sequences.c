/* SequenceExamples to columns. */
#include "parsing.h"

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    parsing_init();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    check_parsing(data, size, true);
    return 0;
}
