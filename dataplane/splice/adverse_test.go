package splice

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"
)

// adverse is a connection with all that hosts may do to each other: windows that close, early answers, ends in every order, resets, forged and
// repeated segments, budgets of a byte, numbers and clocks about to wrap.
func adverse(t testing.TB, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 3))
	offer := &Offer{Scale: uint8(rng.IntN(15)), NoSACK: rng.IntN(8) == 0, NoScale: rng.IntN(8) == 0, NoTimestamps: rng.IntN(8) == 0}
	limits := Limits{Budget: []int{1, 2, 100, 3584, 9000, 65535}[rng.IntN(6)], Time: time.Minute, ServerTime: time.Minute, ReplayTime: 2 * time.Minute}
	w := newWorld(t, seed, offer, limits, 1)
	if rng.IntN(4) > 0 {
		w.loss, w.dup, w.jitter = rng.Float64()*0.25, rng.Float64()*0.2, time.Duration(1+rng.IntN(30))*time.Millisecond
	}
	server := w.servers[0]
	for _, h := range []*host{w.client, server} {
		h.opt.Timestamps = h == server || rng.IntN(4) > 0
		h.opt.SACKPermitted = h == server || rng.IntN(4) > 0
		h.opt.HasScale = h == server || rng.IntN(4) > 0
		h.opt.Scale = uint8(rng.IntN(11))
		h.window = 1 << (11 + rng.IntN(6))
		if rng.IntN(3) == 0 {
			h.opt.MSS = uint16(rng.IntN(1300) + 88)
		}
		if rng.IntN(3) == 0 {
			h.tsOffset = -uint32(rng.IntN(3000)) // wraps soon
		}
	}
	req := request(w.rng, 30+rng.IntN(4000))
	for range rng.IntN(2) * rng.IntN(9000) {
		req = append(req, byte(w.rng.Uint32()))
	}
	resp := make([]byte, rng.IntN(20000))
	for i := range resp {
		resp[i] = byte(w.rng.Uint32())
	}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d: loss %.2f, duplicates %.2f, limits %+v, offer %+v, client %+v, server %+v", seed, w.loss, w.dup, limits, *offer, w.client.opt, server.opt)
		}
	}()

	// The server begins to answer at a byte of the request, and each side ends when it will.
	begin, answered := 1+rng.IntN(len(req)), false
	clientEnds, serverEnds := rng.IntN(3), rng.IntN(2) // 0: with the last byte; 1: after the other side; 2: after the answer
	if clientEnds == 1 {
		serverEnds = 0
	}
	clientDone, serverDone := clientEnds == 0, false
	server.onData = func() {
		if !answered && len(server.in) >= begin {
			answered = true
			serverDone = serverEnds == 0
			server.write(resp, serverDone)
		}
		if answered && !serverDone && server.peerFIN {
			serverDone = true
			server.write(nil, true)
		}
	}
	w.client.onData = func() {
		if !clientDone && (clientEnds == 1 && w.client.peerFIN || clientEnds == 2 && len(w.client.in) == len(resp)) {
			clientDone = true
			w.client.write(nil, true)
		}
	}
	for _, h := range []*host{w.client, server} {
		if rng.IntN(3) == 0 {
			w.after(time.Duration(rng.IntN(300))*time.Millisecond, func() { h.paused = true })
			w.after(time.Duration(300+rng.IntN(5000))*time.Millisecond, h.resume)
		}
	}
	var aborts *host
	if rng.IntN(4) == 0 {
		aborts = []*host{w.client, server}[rng.IntN(2)]
		w.after(time.Duration(rng.IntN(1500))*time.Millisecond, func() {
			if aborts.established && (!w.client.peerFIN || !server.peerFIN) {
				aborts.abort()
			}
		})
	}
	// Someone who cannot see the numbers sends segments of all kinds, and the client's SYN and probes come at any time.
	if rng.IntN(2) == 0 {
		for range 30 {
			w.after(time.Duration(rng.IntN(2000))*time.Millisecond, func() {
				s := Segment{Seq: rng.Uint32(), Ack: rng.Uint32(), Flags: uint8(rng.IntN(32)), Window: uint16(rng.Uint32()), Payload: make([]byte, rng.IntN(3))}
				s.Options.Timestamps, s.Options.TSVal = w.client.ts, rng.Uint32()
				if w.lb.conn != nil && w.lb.conn.State() < Spliced { // behind it, the hosts are on their own
					if rng.IntN(2) == 0 {
						w.lb.conn.FromClient(w.now, &s, w.lb.emit)
					} else {
						w.lb.conn.FromServer(w.now, &s, w.lb.emit)
					}
				}
			})
		}
	}
	for range rng.IntN(4) {
		w.after(time.Duration(rng.IntN(1000))*time.Millisecond, func() {
			if w.client.established && !w.client.reset {
				w.client.segment(ACK, w.client.una-1, nil) // keep-alive
				if rng.IntN(2) == 0 {
					w.client.segment(SYN, w.client.isn, nil) // an old one
				}
			}
		})
	}

	w.client.connect()
	w.client.write(req, clientDone)
	// An abort is seen by the other side with its next segment: it must not wait for anything, so a watchman speaks up.
	if aborts != nil {
		other := w.client
		if aborts == w.client {
			other = server
		}
		var poke func()
		poke = func() {
			if other.established && !other.reset {
				other.ack()
			}
			w.after(time.Second, poke)
		}
		w.after(2*time.Second, poke)
	}
	w.run(func() bool {
		if aborts != nil && aborts.dead {
			if aborts == w.client {
				return server.reset || w.lb.conn == nil || !server.established && w.lb.conn.State() >= Spliced
			}
			return w.client.reset
		}
		if w.client.reset || server.reset {
			w.fail("reset by nobody")
		}
		return w.client.peerFIN && server.peerFIN && len(w.client.in) == len(resp) && len(server.in) == len(req)
	})
	if !bytes.HasPrefix(req, server.in) || !bytes.HasPrefix(resp, w.client.in) {
		w.fail("a stream was changed")
	}
	if w.seq > 60_000 {
		w.fail("a storm: %d events", w.seq)
	}
}

func TestAdverseHosts(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 60
	}
	for seed := range seeds {
		adverse(t, seed)
	}
}
