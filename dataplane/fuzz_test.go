package dataplane

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
	"github.com/lbprim/lbprim/steering"
)

// fuzzPlane serves the addresses that most captures contain, and those of the families.
func fuzzPlane(t testing.TB) *testPlane {
	fam := families2()[0]
	p := newPlane(t, fam)
	pool6 := mustPool(t, p.ids, steering.Maglev, steering.Node{Name: "six", Addr: ap(families2()[1].n1, 0)})
	all4 := &Service{Name: "four", Pool: p.pool, MidStream: Reselect, Mode: 1}
	all6 := &Service{Name: "six", Pool: pool6, MidStream: Reselect}
	rst6 := &Service{Name: "six-reset", Pool: pool6}
	require.NoError(t, p.Apply(table(t, rule("v4", "192.168.0.0/16", all4), rule("web4", fam.vip.String()+" tcp/80", p.svc), rule("all4", "10.0.0.0/8", all4),
		rule("v6", "2001::/16", all6), rule("rst6", "2001:db8:1::/48 tcp", rst6))))
	return p
}

// check holds what comes out of a plane for one packet that went in against what must hold
// for every packet.
func check(t testing.TB, in []byte, v Verdict, out [][]byte) {
	t.Helper()
	var w wire.View
	s := wire.Parse(in, &w)
	if s != wire.OK && v != Dropped {
		t.Fatalf("malformed (%v) and %v: %x", s, v, in)
	}
	if v == Passed && !bytes.Equal(in[:w.End], out[0]) {
		t.Fatalf("passed and changed:\n%x\n%x", in, out[0])
	}
	for _, o := range out {
		var x wire.View
		if s := wire.Parse(o, &x); s != wire.OK {
			t.Fatalf("%v: output %v: %x", v, s, o)
		}
		if int(x.End) != len(o) {
			t.Fatalf("%v: output of %d bytes says %d", v, len(o), x.End)
		}
		if v == Answered && (!x.SumOK(o) && w.SumOK(in) || !x.HeaderSumOK(o)) {
			t.Fatalf("answer has bad checksums: %x", o)
		}
		if v == Forwarded && len(out) == 1 {
			if x.SumOK(o) != w.SumOK(in) && !x.Has(wire.Fragment) {
				t.Fatalf("checksum right %v, was %v:\n%x\n%x", x.SumOK(o), w.SumOK(in), in, o)
			}
			if x.HeaderSumOK(o) != w.HeaderSumOK(in) {
				t.Fatalf("header checksum:\n%x\n%x", in, o)
			}
			if x.End != w.End || x.Proto != w.Proto {
				t.Fatalf("changed shape:\n%x\n%x", in, o)
			}
		}
	}
}

func TestCapturesThroughThePlane(t *testing.T) {
	p := fuzzPlane(t)
	n, forwarded := 0, 0
	r := rand.New(rand.NewPCG(7, 8))
	run := func(b []byte) {
		v, out := p.sendAll(b)
		check(t, b, v[0], out)
		n++
		if v[0] == Forwarded {
			forwarded++
		}
		p.Explain(b)
	}
	for i, b := range captured(t) {
		run(b)
		if i%4 == 0 {
			c := bytes.Clone(b)
			for range 1 + r.IntN(4) {
				c[r.IntN(min(len(c), 80))] = byte(r.Uint32())
			}
			run(c)
			run(c[:r.IntN(len(c)+1)])
		}
		if i%100 == 0 {
			p.now = p.now.Add(time.Second)
			p.Step(p.now)
		}
	}
	t.Log(n, "packets,", forwarded, "forwarded", p.Stats(), p.drops())
	require.Greater(t, forwarded, 450)
}

func FuzzProcess(f *testing.F) {
	fam, fam6 := families2()[0], families2()[1]
	client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
	for _, b := range [][]byte{
		tcp(client, vip, "S", 1, 0, ""), tcp(client, vip, "A", 1, 7, "x"), udp(ap(fam.client, 5), ap(fam.n2, 80), "data"),
		echo(fam.client, fam.vip, false, 1, 2, "x"), unreachable(fam.router, fam.client, tcp(client, ap(fam.n1, 8080), "A", 1, 1, "abc"), 20),
		tcp(ap(fam6.client, 1), ap(fam6.vip, 80), "S", 1, 0, ""), udp(ap(fam6.n1, 5), ap(fam6.vip, 80), "data"), echo(fam6.client, fam6.vip, false, 1, 2, "x"),
		unreachable(fam6.router, fam6.client, tcp(ap(fam6.client, 1), ap(fam6.n1, 80), "A", 1, 1, "abc"), 8),
	} {
		f.Add(b, b, uint8(0))
	}
	f.Fuzz(func(t *testing.T, a, b []byte, link uint8) {
		if len(a) > 4000 || len(b) > 4000 {
			return
		}
		p := fuzzPlane(t)
		p.open(ap(fam.client, 40000))
		for _, x := range [][]byte{a, b, a} {
			v, out := p.sendAll(x)
			check(t, x, v[0], out)
			p.Explain(x)
		}
		// As frames with offloads: nothing may panic, whatever the header says.
		w := p.NewWorker(Link{Virtio: link&1 != 0, Ports: link&2 != 0})
		for _, x := range [][]byte{a, b} {
			buf := make([]byte, ReadOffset+len(x))
			copy(buf[ReadOffset:], x)
			copy(buf[ReadOffset-Headroom:], b[:min(len(b), Headroom)])
			for _, o := range w.Process(p.now, [][]byte{buf}, []int{len(x)}, ReadOffset, nil) {
				var v wire.View
				if wire.Parse(o[Headroom:], &v) != wire.OK {
					t.Fatalf("output %x", o)
				}
			}
		}
	})
}
