package sslpersist

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
)

// lessons feeds a client's and a server's bytes in order and returns what is taught.
func lessons(t *testing.T, h *Handshake, flights ...[]byte) (out []Lesson) {
	t.Helper()
	for i, b := range flights {
		if i%2 == 0 {
			_, err := h.Client(b)
			require.NoError(t, err)
			continue
		}
		_, err := h.Server(b)
		require.NoError(t, err)
		for l, ok := h.Next(); ok; l, ok = h.Next() {
			out = append(out, l)
		}
	}
	return out
}

func hs(msgs ...[]byte) []byte { return records(recHandshake, slices.Concat(msgs...), 0) }

func learnID(b []byte) Lesson { return Lesson{Kind: LearnID, ID: sid(b...)} }

func TestHandshakeLessons(t *testing.T) {
	a, b := fill(32, 1), fill(32, 101)
	ticket, other := fill(160, 7), fill(160, 77)
	finished := Lesson{Kind: Finished}
	tls13 := []Version{TLS13}
	draft := func() []byte {
		body := append(u16(0x7f13), fill(32, 0)...)
		body = append(body, 0x13, 0x02)
		return hs(message(msgServerHello, append(body, vec16(extension(extPreSharedKey, u16(0)))...)))
	}
	cases := []struct {
		name    string
		flights [][]byte
		want    []Lesson
		resumed bool
	}{
		{"new session, empty IDs", [][]byte{helloSpec{}.client(), helloSpec{}.server()}, nil, false},
		{"Go, TLS 1.2: random ID, empty answer", [][]byte{helloSpec{id: a, ticket: []byte{}}.client(), helloSpec{will: true}.server()}, nil, false},
		{"issued to a client without ID", [][]byte{helloSpec{}.client(), helloSpec{id: a}.server()}, []Lesson{learnID(a)}, false},
		{"issued to a client with another ID", [][]byte{helloSpec{id: a}.client(), helloSpec{id: b}.server()}, []Lesson{learnID(b)}, false},
		{"issued, then finished", [][]byte{helloSpec{id: a}.client(), slices.Concat(helloSpec{id: b}.server(), changeCipherSpec)}, []Lesson{learnID(b), finished}, false},
		{"resumed by ID", [][]byte{helloSpec{id: a}.client(), helloSpec{id: a}.server()}, []Lesson{learnID(a)}, true},
		{"resumed by ID, takes tickets", [][]byte{helloSpec{id: a, ticket: []byte{}}.client(), helloSpec{id: a}.server()}, []Lesson{learnID(a)}, true},
		{"echo with a ticket only refreshes", [][]byte{helloSpec{id: a, ticket: ticket}.client(), helloSpec{id: a}.server()}, []Lesson{{Kind: RefreshID, ID: sid(a...)}}, true},
		{"ticket refused, ID issued", [][]byte{helloSpec{id: a, ticket: ticket}.client(), helloSpec{id: b}.server()}, []Lesson{learnID(b)}, false},
		{"new ticket", [][]byte{helloSpec{id: a, ticket: []byte{}}.client(), slices.Concat(hs(helloSpec{will: true}.serverMessage(), message(11, make([]byte, 3000)), message(14, nil)), hs(newTicketMessage(ticket)), changeCipherSpec)},
			[]Lesson{{Kind: LearnKey, Ticket: MarkTicket(ticket)}, finished}, false},
		{"renewed ticket", [][]byte{helloSpec{id: a, ticket: ticket}.client(), slices.Concat(hs(helloSpec{id: a, will: true}.serverMessage()), hs(newTicketMessage(other)), changeCipherSpec)},
			[]Lesson{{Kind: RefreshID, ID: sid(a...)}, {Kind: LearnKey, Ticket: MarkTicket(other)}, finished}, true},
		{"empty new ticket", [][]byte{helloSpec{id: a, ticket: []byte{}}.client(), slices.Concat(hs(helloSpec{will: true}.serverMessage()), hs(newTicketMessage(nil)), changeCipherSpec)}, []Lesson{finished}, false},
		{"TLS 1.3 echo", [][]byte{helloSpec{id: a, versions: tls13}.client(), helloSpec{id: a, versions: tls13}.server()}, nil, false},
		{"TLS 1.3 does not even echo", [][]byte{helloSpec{id: a, versions: tls13}.client(), helloSpec{id: b, versions: tls13}.server()}, nil, false},
		{"TLS 1.3, key accepted", [][]byte{helloSpec{id: a, versions: tls13, psks: [][]byte{ticket, other}}.client(), helloSpec{id: a, versions: tls13, selected: 2}.server()},
			[]Lesson{{Kind: LearnKey, Ticket: MarkTicket(other)}}, true},
		{"TLS 1.3, key refused", [][]byte{helloSpec{id: a, versions: tls13, psks: [][]byte{ticket}}.client(), helloSpec{id: a, versions: tls13}.server()}, nil, false},
		{"TLS 1.3, key that was not offered", [][]byte{helloSpec{id: a, versions: tls13, psks: [][]byte{ticket}}.client(), helloSpec{id: a, versions: tls13, selected: 9}.server()}, nil, true},
		{"both kinds of ticket", [][]byte{helloSpec{id: a, versions: tls13, ticket: other, psks: [][]byte{ticket}}.client(), helloSpec{id: a, versions: tls13, selected: 1}.server()},
			[]Lesson{{Kind: LearnKey, Ticket: MarkTicket(ticket)}}, true},
		{"draft without IDs", [][]byte{helloSpec{versions: []Version{0x7f13}, psks: [][]byte{ticket}}.client(), draft()}, []Lesson{{Kind: LearnKey, Ticket: MarkTicket(ticket)}}, true},
		{"SSLv2 hello", [][]byte{v2Hello(TLS10, nil), helloSpec{legacy: TLS10, id: a, noExt: true}.server()}, []Lesson{learnID(a)}, false},
		{"server hello repeated (L67)", [][]byte{helloSpec{}.client(), slices.Concat(helloSpec{id: a}.server(), helloSpec{id: a}.server(), hs(newTicketMessage(ticket)))},
			[]Lesson{learnID(a), learnID(a), {Kind: LearnKey, Ticket: MarkTicket(ticket)}}, false},
		{"second hello in the clear", [][]byte{helloSpec{id: a}.client(), helloSpec{id: a}.server(), helloSpec{}.client(), helloSpec{id: b}.server()}, []Lesson{learnID(a), learnID(b)}, false},
		{"warning, then hello", [][]byte{helloSpec{}.client(), slices.Concat([]byte{21, 3, 3, 0, 2, 1, 112}, helloSpec{id: a}.server())}, []Lesson{learnID(a)}, false},
		{"what looks like a hello behind the change to encryption", [][]byte{helloSpec{}.client(), slices.Concat(helloSpec{id: a}.server(), changeCipherSpec, helloSpec{id: b}.server())}, []Lesson{learnID(a), finished}, false},
		{"hello request", [][]byte{helloSpec{}.client(), slices.Concat(helloSpec{id: a}.server(), hs(message(0, nil)))}, []Lesson{learnID(a)}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			var h Handshake
			require.Equal(t, c.want, lessons(t, &h, c.flights...))
			require.Equal(t, c.resumed, h.Resumed())
			// The same byte by byte.
			h.Reset()
			var got []Lesson
			for i, b := range c.flights {
				for j := range b {
					if i%2 == 0 {
						_, _ = h.Client(b[j : j+1])
						continue
					}
					_, _ = h.Server(b[j : j+1])
					for l, ok := h.Next(); ok; l, ok = h.Next() {
						got = append(got, l)
					}
				}
			}
			require.Equal(t, c.want, got)
		})
	}
}

// L74: after a HelloRetryRequest the client's second hello is followed, with what it offers.
func TestHelloRetryRequest(t *testing.T) {
	id := fill(32, 1)
	t1, t2 := fill(160, 7), fill(160, 77)
	tls13 := []Version{TLS13}
	first := helloSpec{id: id, versions: tls13, psks: [][]byte{t1, t2}, early: true}.client()
	early := []byte{recApplicationData, 3, 3, 0, 4, 1, 2, 3, 4}
	retry := slices.Concat(helloSpec{id: id, versions: tls13, random: retryRandom}.server(), changeCipherSpec)
	second := slices.Concat(changeCipherSpec, helloSpec{id: id, versions: tls13, psks: [][]byte{t2}}.client())
	reply := helloSpec{id: id, versions: tls13, selected: 1}.server()

	var h Handshake
	require.Equal(t, []Lesson{{Kind: LearnKey, Ticket: MarkTicket(t2)}},
		lessons(t, &h, slices.Concat(first, changeCipherSpec, early), retry, second, reply))
	require.True(t, h.Done())
	h.Reset()
	require.Equal(t, []Lesson{{Kind: LearnKey, Ticket: MarkTicket(t2)}}, lessons(t, &h, first, retry, second, reply))
	h.Reset()
	require.Empty(t, lessons(t, &h, first, retry))
	require.False(t, h.Done())
	h.Reset() // a retry that leads to TLS 1.3 without a key
	require.Empty(t, lessons(t, &h, first, retry, second, helloSpec{id: id, versions: tls13}.server()))
	require.Empty(t, h.Resumed())
}

func TestHandshakeErrors(t *testing.T) {
	var h Handshake
	_, err := h.Client([]byte{22})
	require.ErrorIs(t, err, ErrShort)
	_, err = h.Client([]byte("x"))
	require.ErrorIs(t, err, ErrNotTLS)
	_, err = h.Client(nil)
	require.ErrorIs(t, err, ErrNotTLS)
	require.True(t, h.Done())

	h.Reset()
	_, err = h.Client(helloSpec{id: fill(32, 1)}.client())
	require.NoError(t, err)
	_, err = h.Server([]byte{21, 3, 3, 0, 2})
	require.ErrorIs(t, err, ErrShort)
	_, err = h.Server([]byte{2, 40})
	require.ErrorIs(t, err, ErrAlert)

	h.Reset() // a server's hello without the client's teaches nothing: it may be an echo
	_, err = h.Server(helloSpec{id: fill(32, 1)}.server())
	require.NoError(t, err)
	_, ok := h.Next()
	require.False(t, ok)

	h.Reset() // what goes wrong after the hellos is not of interest
	require.Equal(t, []Lesson{learnID(fill(32, 1))}, lessons(t, &h,
		helloSpec{}.client(), slices.Concat(helloSpec{id: fill(32, 1)}.server(), []byte("junk"))))
	require.True(t, h.Done())
}

func TestHandshakeDropsItsBuffers(t *testing.T) {
	var h Handshake
	client := records(recHandshake, fullSpec().clientMessage(), 50)
	server := records(recHandshake, helloSpec{id: fill(32, 1), versions: []Version{TLS13}}.serverMessage(), 50)
	lessons(t, &h, client, server)
	require.True(t, h.Done())
	require.Nil(t, h.client.buf)
	require.Nil(t, h.server.buf)
}

func TestHandshakeDoesNotAllocate(t *testing.T) {
	client := helloSpec{id: fill(32, 1), ticket: fill(160, 1)}.client()
	server := slices.Concat(helloSpec{id: fill(32, 1), will: true}.server(), hs(newTicketMessage(fill(160, 5))), changeCipherSpec)
	var h Handshake
	require.Zero(t, testing.AllocsPerRun(100, func() {
		h.Reset()
		_, _ = h.Client(client)
		_, _ = h.Server(server)
		for _, ok := h.Next(); ok; _, ok = h.Next() {
		}
	}))
	split := records(recHandshake, fullSpec().clientMessage(), 100)
	buf := make([]byte, MaxHello)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		h.Reset()
		h.SetBuffer(buf)
		_, _ = h.Client(split)
		_, _ = h.Server(server)
	}))
}

// Handshakes of the captures: tickets issued and resumptions are those of the tables.
func TestHandshakesAgreeWithWireshark(t *testing.T) {
	byFile := map[string][]wantStream{}
	for _, w := range tcpRows(t) {
		byFile[w.File] = append(byFile[w.File], w)
	}
	resumed, tickets := 0, 0
	for file, rows := range byFile {
		if slices.Contains(hasPreamble, filepath.Base(file)) {
			continue
		}
		flows := reassemble(t, testenv.SharedFile(t, file))
		for _, w := range rows {
			if w.Client == nil || w.Server == nil || len(w.Clients) != 1 || len(w.Servers) != 1 || filepath.Base(file) == "sv_tcp-fastopen-10-syn-data-ignore.pcap" {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", filepath.Base(file), w.Stream), func(t *testing.T) {
				var h Handshake
				// The first record of the client, then all of the server.
				c2s, s2c := flows[*w.Client+" "+*w.Server], flows[*w.Server+" "+*w.Client]
				got := lessons(t, &h, c2s, s2c)
				keys, ids := 0, 0
				for _, l := range got {
					switch l.Kind {
					case LearnKey:
						keys++
					case LearnID:
						ids++
						require.Equal(t, w.Servers[0].SessionID, l.ID.String())
						require.NotEmpty(t, w.Servers[0].SessionID)
					}
				}
				if w.TLS13 {
					require.Zero(t, ids)
				}
				by := ""
				if w.ResumedBy != nil {
					by = *w.ResumedBy
				}
				require.Equal(t, by != "", h.Resumed(), "resumed by %q", by)
				if by == "session-id-echo" {
					require.Equal(t, 1, ids)
				}
				if by == "psk" {
					require.Equal(t, 1, keys)
				} else if _, cut := flows[*w.Server+" "+*w.Client+gap]; !cut {
					require.Equal(t, w.Tickets, keys, "tickets issued")
				}
				if h.Resumed() {
					resumed++
				}
				tickets += keys
			})
		}
	}
	t.Log(resumed, "resumptions,", tickets, "tickets")
	require.Greater(t, resumed, 35)
}
