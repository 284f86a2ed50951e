package splice

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// tape is where a run takes its chances from. Behind its end all goes well, and little happens, so that a shorter tape is a simpler run: what fails can be
// shrunk, by the fuzzer and by shrink. Each two bytes are a number.
type tape struct {
	b []byte
}

// Uint64 implements rand.Source. The number is in the high and in the low bits, which rand takes for different purposes.
func (t *tape) Uint64() uint64 {
	v := uint64(0xffff)
	if len(t.b) >= 2 {
		v = uint64(t.b[0])<<8 | uint64(t.b[1])
		t.b = t.b[2:]
	}
	return v * 0x0001_0001_0001_0001
}

// less is a number below n that is 0 when the tape has ended.
func less(rng *rand.Rand, n int) int { return n - 1 - rng.IntN(n) }

// taped is a connection of two hosts by way of the splice, all of whose chances are on the tape: who offers what, what is sent in which pieces, what is lost, late and
// doubled, when windows close, and who ends first.
func taped(t testing.TB, b []byte, fault func(b []byte, from Side)) {
	rng := rand.New(&tape{b})
	offer := &Offer{Scale: uint8(less(rng, 15)), NoSACK: less(rng, 8) == 7, NoScale: less(rng, 8) == 7, NoTimestamps: less(rng, 8) == 7}
	limits := Limits{Budget: 3584 >> less(rng, 12), Time: time.Minute, ServerTime: time.Minute, ReplayTime: 2 * time.Minute}
	w := newWorld(t, 1, offer, limits, 1)
	w.rng, w.text, w.fault = rng, rand.New(rand.NewPCG(1, 9)), fault
	server := w.servers[0]
	w.loss, w.dup, w.jitter = float64(less(rng, 26))/100, float64(less(rng, 21))/100, time.Duration(less(rng, 30))*time.Millisecond
	c := &w.client.opt
	c.Timestamps, c.SACKPermitted, c.HasScale = less(rng, 4) < 3, less(rng, 4) < 3, less(rng, 4) < 3
	for _, h := range []*host{w.client, server} {
		h.opt.Scale = uint8(less(rng, 11))
		h.opt.MSS = uint16(1460 - less(rng, 1372))
		h.window = 1 << (16 - less(rng, 6))
		if n := less(rng, 4); n > 0 {
			w.after(time.Duration(less(rng, 300))*time.Millisecond, func() { h.paused = true })
			w.after(time.Duration(300+less(rng, 3000))*time.Millisecond, h.resume)
		}
	}
	exchange(w, 30+less(rng, 5000), less(rng, 20000), less(rng, 30000), less(rng, 3))
}

// failed is what a run that is not to end the test ends by.
type failed string

// quiet is a testing.TB whose failures end the run, and nothing else.
type quiet struct{ testing.TB }

func (quiet) Helper()                        {}
func (quiet) Log(...any)                     {}
func (quiet) Logf(string, ...any)            {}
func (quiet) Failed() bool                   { return false }
func (quiet) Errorf(format string, a ...any) { panic(failed(fmt.Sprintf(format, a...))) }
func (quiet) Fatalf(format string, a ...any) { panic(failed(fmt.Sprintf(format, a...))) }
func (quiet) FailNow()                       { panic(failed("failed")) }

// why runs a tape and says how it fails, if it does.
func why(t testing.TB, b []byte, fault func([]byte, Side)) (text string) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case failed:
			text = string(e)
		default:
			panic(e)
		}
	}()
	taped(quiet{t}, b, fault)
	return ""
}

// shrink returns a shorter tape that fails, too: as long as it can it leaves pieces out, smaller and smaller ones, and lets numbers be what they are behind the end.
func shrink(b []byte, fails func([]byte) bool) []byte {
	for n := len(b); n > 0; {
		smaller := false
		for at := 0; at+n <= len(b); {
			without := append(append([]byte(nil), b[:at]...), b[at+n:]...)
			plain := append([]byte(nil), b...)
			same := true
			for i := at; i < at+n; i++ {
				same = same && plain[i] == 0xff
				plain[i] = 0xff
			}
			switch {
			case fails(without):
				b, smaller = without, true
			case !same && fails(plain):
				b, smaller = plain, true
			default:
				at += n
			}
		}
		if n == 1 && !smaller {
			break
		}
		if !smaller || n > len(b) {
			n = min(n/2, len(b))
		}
	}
	return b
}

// randomTape is that of a seed.
func randomTape(seed uint64) []byte {
	rng := rand.New(rand.NewPCG(seed, 6))
	b := make([]byte, 2*rng.IntN(600))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// Two TCPs with the splice between them, by seeds. What fails is shrunk first.
func TestTwoTCPs(t *testing.T) {
	seeds := uint64(100)
	if testing.Short() {
		seeds = 40
	}
	for seed := range seeds {
		b := randomTape(seed)
		if why(t, b, nil) == "" {
			continue
		}
		b = shrink(b, func(b []byte) bool { return why(t, b, nil) != "" })
		t.Logf("seed %d, shrunk: %s", seed, hex.EncodeToString(b))
		taped(t, b, nil)
	}
}

func FuzzTwoTCPs(f *testing.F) {
	f.Add([]byte{})
	f.Add(randomTape(1))
	f.Add(randomTape(2)[:40])
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) <= 4096 {
			taped(t, b, nil)
		}
	})
}

// The model sees what a splice could do wrong, and shows it by a short run.
func TestTwoTCPsFindFaults(t *testing.T) {
	add := func(b []byte, at int, n uint32) {
		var nothing noChange
		put(head(b), at, n, nothing)
	}
	options := func(b []byte, kind byte, do func(at, n int)) {
		h := head(b)
		for at, n := option(h, 20); n > 0; at, n = option(h, at+n) {
			if h[at] == kind {
				do(at, n)
			}
		}
	}
	for name, fault := range map[string]func(b []byte, from Side){
		"an acknowledgement": func(b []byte, from Side) {
			if from == Client {
				add(b, 8, 1<<20)
			}
		},
		"a byte": func(b []byte, _ Side) {
			if n := len(head(b)); len(b) > n+900 {
				b[n+900] ^= 1
			}
		},
		"an echo": func(b []byte, from Side) {
			if from == Client {
				options(b, kindTimestamps, func(at, _ int) { add(b, at+6, 1<<22) })
			}
		},
		"a block of SACK": func(b []byte, from Side) {
			if from == Client {
				options(b, kindSACK, func(at, _ int) { add(b, at+2, 1<<25); add(b, at+6, 1<<25) })
			}
		},
		"a window": func(b []byte, from Side) {
			if from == Server {
				b[14], b[15] = b[15], b[14]|0x80
			}
		},
		"a FIN": func(b []byte, _ Side) { b[13] &^= FIN },
	} {
		t.Run(name, func(t *testing.T) {
			var tape []byte
			for seed := uint64(0); tape == nil; seed++ {
				require.Less(t, seed, uint64(200), "not found")
				if b := randomTape(seed); why(t, b, fault) != "" {
					tape = b
				}
			}
			tape = shrink(tape, func(b []byte) bool { return why(t, b, fault) != "" })
			t.Logf("%d bytes: %x: %.120s", len(tape), tape, why(t, tape, fault))
			require.NotEmpty(t, why(t, tape, fault))
			require.Empty(t, why(t, tape, nil), "without the fault all is well")
			said := len(tape) - bytes.Count(tape, []byte{0xff})
			require.LessOrEqual(t, said, 40, "all else is what is behind the end")
		})
	}
}
