package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"unsafe"
)

func cpuTime() int64 {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return u.Utime.Nano() + u.Stime.Nano()
}

// cpu returns the nanoseconds of CPU that f takes for each of n operations.
func cpu(n int, f func()) float64 {
	at := cpuTime()
	f()
	return float64(cpuTime()-at) / float64(n)
}

func rss() int64 {
	b, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(b), "VmRSS:")
	var kb int64
	_, _ = fmt.Sscan(rest, &kb)
	return kb << 10
}

var chaseMem []byte

// chaser returns a walk of dependent random accesses over 1 GiB of huge pages.
func chaser() func(n int) float64 {
	const lines = 1 << 24 // of 64 bytes
	if chaseMem == nil {
		all, err := syscall.Mmap(-1, 0, lines*64+4<<20, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
		if err != nil {
			panic(err)
		}
		off := -uintptr(unsafe.Pointer(&all[0])) & (2<<20 - 1)
		chaseMem = all[off : off+lines*64]
		_ = syscall.Madvise(chaseMem, 14) // MADV_HUGEPAGE
		// A full-period linear congruence visits every line in a random-looking order.
		for i := range uint32(lines) {
			*(*uint32)(unsafe.Pointer(&chaseMem[int(i)*64])) = (i*1664525 + 1013904223) % lines
		}
	}
	return func(n int) float64 {
		at, sink := uint32(1), uint32(0)
		ns := cpu(n, func() {
			for range n {
				at = *(*uint32)(unsafe.Pointer(&chaseMem[int(at)*64]))
				sink += at
			}
		})
		if sink == 1 {
			fmt.Println()
		}
		return ns
	}
}
