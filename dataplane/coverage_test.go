package dataplane

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/clienttable"
	"github.com/lbprim/lbprim/internal/wire"
)

// lite builds a packet of UDP-Lite or DCCP whose checksum covers the header, and nothing of the payload but with all.
func lite(proto uint8, src, dst netip.AddrPort, all bool, payload string) []byte {
	b := append(wire.BuildProbe(proto, endOf(src), endOf(dst), src.Addr().Is4()), payload...)
	var v wire.View
	at := 20
	if src.Addr().Is4() {
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
		binary.BigEndian.PutUint16(b[10:], 0)
		binary.BigEndian.PutUint16(b[10:], wire.Checksum(b[:20]))
	} else {
		at = 40
		binary.BigEndian.PutUint16(b[4:], uint16(len(b)-40))
	}
	switch {
	case all:
	case proto == wire.ProtoUDPLite:
		b[at+5] = 8
	default:
		b[at+5] |= 1
	}
	if wire.Parse(b, &v) != wire.OK {
		panic("bad packet")
	}
	sum, _ := v.TransportSum(b)
	binary.BigEndian.PutUint16(b[v.SumOff:], sum)
	return b
}

// TestLiteAndDCCP: protocols whose checksum covers the addresses, but not always all of the payload, are translated with their ports and stay right.
func TestLiteAndDCCP(t *testing.T) {
	for name, proto := range map[string]uint8{"udplite": wire.ProtoUDPLite, "dccp": wire.ProtoDCCP} {
		for _, mode := range []Forward{NAT, FullNAT} {
			t.Run(name+" "+mode.String(), func(t *testing.T) {
				both(t, func(t *testing.T, fam family) {
					p := newPlane(t, fam, func(c *Config, s *Service) {
						s.Mode = clienttable.ServerPerSession
						if s.Forward = mode; mode == FullNAT {
							s.Locals = []netip.Addr{fam.elsewhere}
						}
						c.Policies = table(t, rule("only", fam.vip.String()+" "+name+"/80", s))
					})
					vip := ap(fam.vip, 80)
					nodes := map[netip.AddrPort]bool{}
					for i := range uint16(4) {
						client := ap(fam.client, 4000+i)
						in := lite(proto, client, vip, i&1 == 0, "hello")
						v, out := p.send(in)
						require.Equal(t, Forwarded, v, p.drops())
						f, _ := parseFlow(out)
						nodes[f.Dst] = true
						require.EqualValues(t, 8080, f.Dst.Port())
						p.wellFormed(out, f.Src, f.Dst)
						require.Equal(t, mode == NAT, f.Src == client)
						back := p.forwarded(lite(proto, f.Dst, f.Src, i&1 == 1, "welcome"), vip, client)
						require.Equal(t, "welcome", string(back[len(back)-7:]))
						s, ok := p.Session(proto, client, vip)
						require.True(t, ok)
						require.Equal(t, f.Dst, s.Node)

						// An error about it is the sender's.
						v, e := p.send(unreachable(fam.router, f.Src.Addr(), out, 8))
						require.Equal(t, Forwarded, v, p.drops())
						checkQuote(t, e, client, vip)
						_, view := parseFlow(e)
						_, was := parseFlow(in)
						require.Equal(t, in[was.L4:was.L4+8], view.Quote(e)[was.L4:was.L4+8], "with the checksum that it sent")
					}
					require.Len(t, nodes, 2, "each session by itself")
					v, _ := p.send(lite(proto, ap(fam.client, 1), ap(fam.vip, 81), true, ""))
					require.Equal(t, Dropped, v)
					require.EqualValues(t, 1, p.drops()[NoPolicy])
					if e, err := p.ExplainFlow(proto, ap(fam.client, 9), vip); true {
						require.NoError(t, err)
						require.Equal(t, Forwarded, e.Verdict, e.String())
					}
					if proto == wire.ProtoUDPLite {
						b := lite(proto, ap(fam.client, 2), vip, true, "")
						h := len(b) - 8
						b[h+6], b[h+7] = 0, 0
						v, _ = p.send(b)
						require.Equal(t, Dropped, v)
						require.EqualValues(t, 1, p.drops()[ZeroChecksum])
					}
				})
			})
		}
	}
}
