package dataplane

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/wire"
)

// FuzzNotes reads what other balancers say of flows and of fragments: it is refused, or is written again as something that reads the same.
func FuzzNotes(f *testing.F) {
	f.Add("web")
	f.Add(note{service: "web", owner: netip.MustParseAddr("192.0.2.1")}.String())
	f.Add(note{service: "web", vip: ap(netip.MustParseAddr("2001:db8::1"), 80), client: ap(netip.MustParseAddr("2001:db8::2"), 4000)}.String())
	f.Add("web\x0010.0.0.1:80\x0010.0.0.2:4000\x0010.0.0.3:5000\x001 2 3 4")
	f.Add("web\x00#6 10.0.0.2:4000 10.0.0.1:80 1f")
	f.Add("web\x00#17 [2001:db8::2]:4000 [2001:db8::1]:80 ffffffff")
	f.Add("\x00#passes 1f 47")
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := parseNote(text); err == nil {
			again, err := parseNote(n.String())
			require.NoError(t, err, "%q", n.String())
			require.Equal(t, n, again)
		}
		if service, c, err := parseCourse(text); err == nil {
			same, again, err := parseCourse(courseText(service, &c))
			require.NoError(t, err)
			require.Equal(t, c, again)
			require.Equal(t, service, same)
		}
	})
}

// FuzzReassembler gives fragments that are made of the input, in its order, and looks for packets that are no packets, and for memory that is not given back.
func FuzzReassembler(f *testing.F) {
	f.Add([]byte{0, 0, 1, 8, 1, 1, 8, 0, 1})
	f.Add([]byte{1, 0, 1, 16, 1, 1, 0, 1, 8, 1, 16, 0, 200})
	f.Fuzz(func(t *testing.T, data []byte) {
		var r reassembler
		now := time.Unix(1e9, 0)
		fam := families2()[0]
		if len(data) > 0 && data[0]&1 != 0 {
			fam = families2()[1]
		}
		whole := udp(ap(fam.client, 1), ap(fam.elsewhere, 8000), string(make([]byte, 600)))
		for len(data) >= 3 {
			size, id, which := 8*(1+int(data[0])%60), uint32(data[1]%4), int(data[2])
			data = data[3:]
			parts := split(whole, size, id)
			b := parts[which%len(parts)]
			var v wire.View
			if wire.Parse(b, &v) != wire.OK || v.Mark&wire.Fragment == 0 {
				continue
			}
			got, why := r.add(now, b, &v)
			if why != NotDropped {
				require.Nil(t, got)
			}
			if got != nil {
				require.Equal(t, wire.OK, wire.Parse(got, &v))
				require.Zero(t, v.Mark&wire.Fragment)
				require.Len(t, got, len(whole))
			}
			now = now.Add(time.Duration(which) * 10 * time.Millisecond)
		}
		r.age(now.Add(fragmentLife))
		require.Zero(t, r.bytes)
		require.Empty(t, r.m)
	})
}
