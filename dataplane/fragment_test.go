package dataplane

import (
	"encoding/binary"
	"net/netip"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
)

// split cuts a packet into fragments with payloads of at most n bytes, a multiple of 8.
func split(b []byte, n int, id uint32) (out [][]byte) {
	if b[0]>>4 == 4 {
		for off := 0; off < len(b)-20; off += n {
			end := min(off+n, len(b)-20)
			f := append(append([]byte{}, b[:20]...), b[20+off:20+end]...)
			binary.BigEndian.PutUint16(f[2:], uint16(len(f)))
			binary.BigEndian.PutUint16(f[4:], uint16(id))
			ff := uint16(off / 8)
			if end < len(b)-20 {
				ff |= 0x2000
			}
			binary.BigEndian.PutUint16(f[6:], ff)
			binary.BigEndian.PutUint16(f[10:], 0)
			binary.BigEndian.PutUint16(f[10:], wire.Checksum(f[:20]))
			out = append(out, f)
		}
		return out
	}
	for off := 0; off < len(b)-40; off += n {
		end := min(off+n, len(b)-40)
		f := append(append([]byte{}, b[:40]...), b[6], 0, 0, 0)
		f[6] = wire.ProtoFragment
		ff := uint16(off)
		if end < len(b)-40 {
			ff |= 1
		}
		binary.BigEndian.PutUint16(f[42:], ff)
		f = binary.BigEndian.AppendUint32(f, id)
		f = append(f, b[40+off:40+end]...)
		binary.BigEndian.PutUint16(f[4:], uint16(len(f)-40))
		out = append(out, f)
	}
	return out
}

// join puts fragments together again.
func join(t *testing.T, fs [][]byte) []byte {
	t.Helper()
	sort.Slice(fs, func(i, j int) bool {
		_, a := parseFlow(fs[i])
		_, b := parseFlow(fs[j])
		return a.FragOff < b.FragOff
	})
	var out []byte
	for i, f := range fs {
		_, v := parseFlow(f)
		require.True(t, v.HeaderSumOK(f))
		h := int(v.L4)
		if i == 0 {
			if v.Version == 4 {
				out = append(out, f[:20]...)
				binary.BigEndian.PutUint16(out[6:], 0)
			} else {
				out = append(out, f[:40]...)
				out[6] = f[40]
				h = 48
			}
		}
		require.EqualValues(t, v.FragOff, len(out)-map[uint8]int{4: 20, 6: 40}[v.Version])
		out = append(out, f[h:v.End]...)
	}
	if out[0]>>4 == 4 {
		binary.BigEndian.PutUint16(out[2:], uint16(len(out)))
		binary.BigEndian.PutUint16(out[10:], 0)
		binary.BigEndian.PutUint16(out[10:], wire.Checksum(out[:20]))
	} else {
		binary.BigEndian.PutUint16(out[4:], uint16(len(out)-40))
	}
	return out
}

func TestFragments(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
		payload := strings.Repeat("0123456789abcdef", 200)
		for name, order := range map[string][]int{"in order": {0, 1, 2}, "reversed": {2, 1, 0}, "first in the middle": {1, 0, 2}} {
			t.Run(name, func(t *testing.T) {
				p := newPlane(t, fam)
				way := func(b []byte, src, dst any) []byte {
					fs := split(b, 1400, 77)
					require.Len(t, fs, 3)
					var outs [][]byte
					held := 0
					for _, i := range order {
						v, out := p.sendAll(fs[i])
						if v[0] == Held {
							held++
						} else {
							require.Equal(t, Forwarded, v[0], p.drops())
						}
						outs = append(outs, out...)
					}
					require.Len(t, outs, 3)
					require.Equal(t, map[string]int{"in order": 0, "reversed": 2, "first in the middle": 1}[name], held)
					whole := join(t, outs)
					f, v := parseFlow(whole)
					require.Equal(t, []any{src, dst}, []any{f.Src, f.Dst})
					require.True(t, v.SumOK(whole))
					return whole
				}
				_, out := p.send(udp(client, vip, "first, whole"))
				f, _ := parseFlow(out)
				node := f.Dst
				way(udp(client, vip, payload), client, node)
				way(udp(node, client, payload), vip, client)
			})
		}
		t.Run("never to a random node", func(t *testing.T) {
			p := newPlane(t, fam)
			fs := split(udp(client, vip, payload), 1400, 5)
			v, out := p.sendAll(fs[1])
			require.Equal(t, Held, v[0])
			require.Empty(t, out)
			p.now = p.now.Add(fragmentLife)
			p.Step(p.now)
			require.Zero(t, p.fragments.held)
			v, _ = p.sendAll(fs[0])
			require.Equal(t, Forwarded, v[0])
			// Repeated: dropped alone. Overlapping: the datagram is given up.
			v, _ = p.sendAll(fs[0])
			require.Equal(t, Dropped, v[0])
			v, _ = p.sendAll(fs[1])
			require.Equal(t, Forwarded, v[0])
			again := split(udp(client, vip, payload), 1000, 5)
			v, _ = p.sendAll(again[1])
			require.Equal(t, Dropped, v[0], "a part of what was seen")
			v, _ = p.sendAll(again[2])
			require.Equal(t, Dropped, v[0], "from 2000 to 3000")
			v, _ = p.sendAll(fs[2])
			require.Equal(t, Dropped, v[0])
			require.EqualValues(t, 4, p.drops()[FragmentOverlap])
		})
		t.Run("bounded", func(t *testing.T) {
			p := newPlane(t, fam)
			b := split(udp(client, vip, payload), 8, 5)
			for i := len(b) - 1; i > 1; i -= 2 {
				p.sendAll(b[i])
			}
			require.Positive(t, p.drops()[FragmentsFull])
			for id := range uint32(maxDatagrams + 100) {
				p.sendAll(split(udp(client, vip, payload), 1400, 100+id)[1])
			}
			require.LessOrEqual(t, len(p.fragments.m), maxDatagrams)
			require.LessOrEqual(t, p.fragments.held, maxHeldBytes)
			p.now = p.now.Add(time.Minute)
			p.Step(p.now)
			require.Zero(t, p.fragments.held)
		})
		t.Run("of others pass", func(t *testing.T) {
			p := newPlane(t, fam)
			for _, f := range split(udp(client, ap(fam.elsewhere, 80), payload), 1400, 5) {
				v, out := p.sendAll(f)
				require.Equal(t, Passed, v[0])
				require.Equal(t, f, out[0])
			}
			fs := split(udp(ap(fam.n1, 9999), ap(fam.elsewhere, 80), payload), 1400, 6)
			v, _ := p.sendAll(fs[1])
			require.Equal(t, Held, v[0])
			_, out := p.sendAll(fs[0])
			require.Len(t, out, 2)
		})
	})
}

// A session goes on when its service is gone, in fragments, too, although nothing says any more that their addresses are of a virtual address or of a node.
func TestFragmentsOutliveTheirService(t *testing.T) {
	both(t, func(t *testing.T, fam family) {
		for _, foreign := range []Foreign{Pass, Drop} {
			p := newPlane(t, fam, func(c *Config, _ *Service) { c.Foreign = foreign })
			client, vip := ap(fam.client, 40000), ap(fam.vip, 80)
			_, out := p.send(udp(client, vip, "x"))
			f, _ := parseFlow(out)
			require.NoError(t, p.Apply(nil))
			payload := strings.Repeat("0123456789", 300)
			for i, c := range []struct {
				b        []byte
				src, dst netip.AddrPort
			}{{udp(client, vip, payload), client, f.Dst}, {udp(f.Dst, client, payload), vip, client}} {
				v, outs := p.sendAll(split(c.b, 1000, uint32(7+i))...)
				require.Equal(t, []Verdict{Forwarded, Forwarded, Forwarded, Forwarded}, v, "drops %v", p.drops())
				p.wellFormed(join(t, outs), c.src, c.dst)
			}
			// Others are as foreign as they are.
			v, _ := p.send(split(udp(ap(fam.client2, 40000), vip, payload), 1000, 7)[1])
			require.Equal(t, map[Foreign]Verdict{Pass: Passed, Drop: Dropped}[foreign], v)
		}
	})
}
