//go:build !purego

#include "textflag.h"

// func outside4(w *slotHead, port, src uint32) (out uint64)
//
// All lanes at once, with no more than SSE2, which every amd64 has. It knows only signed comparison:
// that is what the flipped sign bits are for.
TEXT ·outside4(SB), NOSPLIT, $0-24
	MOVQ      w+0(FP), AX
	MOVL      port+8(FP), X0
	MOVL      src+12(FP), X1
	PUNPCKLWL X0, X0
	PSHUFL    $0, X0, X0
	PSHUFL    $0, X1, X1

	MOVOU   4(AX), X2  // first ports
	MOVOU   14(AX), X4 // last ports
	MOVO    X0, X3
	PCMPGTW X0, X2     // first > port
	PCMPGTW X4, X3     // port > last
	POR     X2, X3

	MOVOU   24(AX), X5 // first clients of rules 0-3
	MOVOU   44(AX), X6 // last clients
	MOVO    X1, X7
	PCMPGTL X1, X5
	PCMPGTL X6, X7
	POR     X5, X7

	MOVL    40(AX), X8 // of rule 4
	MOVL    60(AX), X9
	MOVO    X1, X10
	PCMPGTL X1, X8
	PCMPGTL X9, X10
	POR     X8, X10

	PACKSSLW X10, X7
	POR      X3, X7
	PACKSSWB X7, X7
	MOVQ     X7, out+16(FP)
	RET
