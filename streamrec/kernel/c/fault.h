/* What is wrong with the bytes: streamrec.kernel.contract.FaultCode. */
#ifndef SR_FAULT_H
#define SR_FAULT_H

enum sr_fault {
    SR_NONE = 0,
    SR_LENGTH_CRC = 1,
    SR_DATA_CRC = 2,
    SR_MALFORMED = 3,
    SR_MISSING = 4,
    SR_WRONG_KIND = 5,
    SR_WRONG_COUNT = 6,
    SR_WRONG_SIZE = 7,
    SR_TOO_LARGE = 8,
    SR_NO_MEMORY = 100, /* no fault of the bytes */
};

#endif
