//go:build !race

#include "textflag.h"

// func storeRelease(p *uint64, w uint64)
TEXT ·storeRelease(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ w+8(FP), BX
	MOVQ BX, (AX)
	RET

// func copyRelease(dst, src unsafe.Pointer, n uintptr)
TEXT ·copyRelease(SB), NOSPLIT, $0-24
	MOVQ dst+0(FP), DI
	MOVQ src+8(FP), SI
	MOVQ n+16(FP), CX
	TESTQ CX, CX
	JZ   done
loop:
	MOVQ (SI), AX
	MOVQ AX, (DI)
	ADDQ $8, SI
	ADDQ $8, DI
	DECQ CX
	JNZ  loop
done:
	RET

// func prefetch(lines *[8]unsafe.Pointer, n int)
TEXT ·prefetch(SB), NOSPLIT, $0-16
	MOVQ lines+0(FP), SI
	MOVQ n+8(FP), CX
	TESTQ CX, CX
	JLE  fetched
next:
	MOVQ (SI), AX
	PREFETCHT0 (AX)
	ADDQ $8, SI
	DECQ CX
	JNZ  next
fetched:
	RET

// func prefetchOne(p unsafe.Pointer)
TEXT ·prefetchOne(SB), NOSPLIT, $0-8
	MOVQ p+0(FP), AX
	PREFETCHT0 (AX)
	RET

// func prefetchRun(p unsafe.Pointer, stride uintptr)
TEXT ·prefetchRun(SB), NOSPLIT, $0-16
	MOVQ p+0(FP), AX
	MOVQ stride+8(FP), DX
	LEAQ (AX)(DX*4), BX
	LEAQ (DX)(DX*2), CX
	PREFETCHT0 (AX)
	PREFETCHT0 (AX)(DX*1)
	PREFETCHT0 (AX)(DX*2)
	PREFETCHT0 (AX)(CX*1)
	PREFETCHT0 (BX)
	PREFETCHT0 (BX)(DX*1)
	PREFETCHT0 (BX)(DX*2)
	PREFETCHT0 (BX)(CX*1)
	RET
