package sslpersist

import (
	"slices"
	"syscall"
	"testing"
	"time"
)

func peers() []struct {
	name  string
	parse func([]byte) bool
} {
	return []struct {
		name  string
		parse func([]byte) bool
	}{{"lbprim-id", oursID}, {"lbprim-all", ours}, {"cryptobyte-id", walkID}, {"cryptobyte-all", walkAll}, {"gopacket", layer()}, {"crypto-tls", stdlib()}}
}

func BenchmarkClientHello(b *testing.B) {
	for name, hello := range hellos(b) {
		for _, p := range peers() {
			b.Run(name+"/"+p.name, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if !p.parse(hello) {
						b.Fatal("not parsed")
					}
				}
			})
		}
	}
}

// cpu is the processor time of this process so far.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestRatios runs the peers in turns and compares medians of processor time.
func TestRatios(t *testing.T) {
	if testing.Short() {
		t.Skip("a measurement")
	}
	for name, hello := range hellos(t) {
		all := peers()
		times := make([][]float64, len(all))
		for range 9 {
			for i, p := range all {
				n := 200_000
				if p.name == "crypto-tls" {
					n = 2000
				}
				start := cpu()
				for range n {
					if !p.parse(hello) {
						t.Fatal(p.name)
					}
				}
				times[i] = append(times[i], float64(cpu()-start)/float64(n))
			}
		}
		median := func(i int) float64 {
			slices.Sort(times[i])
			return times[i][len(times[i])/2]
		}
		id, whole := median(0), median(1)
		t.Logf("%s, %d bytes: ID alone %.1f ns, whole hello %.1f ns", name, len(hello), id, whole)
		for i := 2; i < len(all); i++ {
			t.Logf("  %-15s %8.1f ns, ratio of the ID alone %.4f, of the whole hello %.4f", all[i].name, median(i), id/median(i), whole/median(i))
		}
	}
}
