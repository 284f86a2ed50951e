package clienttable

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func TestFlow(t *testing.T) {
	require.EqualValues(t, 40, unsafe.Sizeof(Flow{}))
	require.Empty(t, whyNotPacked[Flow, [2]uint64]())
	for _, c := range []struct {
		proto    uint8
		src, dst netip.AddrPort
		text     string
	}{
		{6, ap("192.0.2.1:1024"), ap("198.51.100.7:80"), "tcp 192.0.2.1:1024 > 198.51.100.7:80"},
		{17, ap("[2001:db8::1]:5353"), ap("[2001:db8::2]:53"), "udp [2001:db8::1]:5353 > [2001:db8::2]:53"},
		{1, ap("0.0.0.0:0"), ap("255.255.255.255:65535"), "proto-1 0.0.0.0:0 > 255.255.255.255:65535"},
		{6, ap("[::]:1"), ap("[::1]:2"), "tcp [::]:1 > [::1]:2"},
		{0, netip.AddrPort{}, netip.AddrPort{}, "proto-0 -:0 > -:0"},
	} {
		t.Run(c.text, func(t *testing.T) {
			f := MakeFlow(c.proto, c.src, c.dst)
			require.Equal(t, c.src, f.Src())
			require.Equal(t, c.dst, f.Dst())
			require.Equal(t, c.proto, f.Protocol())
			require.Equal(t, c.text, f.String())
			require.Equal(t, MakeFlow(c.proto, c.dst, c.src), f.Reverse())
			require.Equal(t, f, f.Reverse().Reverse())
			require.Equal(t, f.Hash(1), MakeFlow(c.proto, c.src, c.dst).Hash(1))
			if c.src.IsValid() {
				require.NotEqual(t, f.Hash(1), f.Hash(2))
			}
		})
	}
	require.Zero(t, Flow{}.Reverse())
	require.Equal(t, Flow{}, MakeFlow(0, netip.AddrPort{}, netip.AddrPort{}))
	require.NotEqual(t, Flow{}, MakeFlow(0, ap("[::]:0"), ap("[::]:0")), "no address is not the unspecified address")
}

func TestFlowOneKeyPerFlow(t *testing.T) {
	four := MakeFlow(6, ap("192.0.2.1:1"), ap("192.0.2.2:2"))
	require.Equal(t, four, MakeFlow(6, ap("[::ffff:192.0.2.1]:1"), ap("[::ffff:192.0.2.2]:2")), "IPv4 in IPv6")
	require.Equal(t, MakeFlow(6, ap("[fe80::1]:1"), ap("[fe80::2]:2")), MakeFlow(6, ap("[fe80::1%eth0]:1"), ap("[fe80::2%eth1]:2")), "zones")
	require.Equal(t, four, MakeFlow4(6, [4]byte{192, 0, 2, 1}, [4]byte{192, 0, 2, 2}, 1, 2))
	a, b := netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2")
	require.Equal(t, MakeFlow(17, netip.AddrPortFrom(a, 1), netip.AddrPortFrom(b, 2)), MakeFlow6(17, a.As16(), b.As16(), 1, 2))
	require.NotEqual(t, MakeFlow(6, ap("[::192.0.2.1]:1"), ap("192.0.2.2:2")), four, "the deprecated compatible form is another address")
}

// Hashes of flows that differ in little must spread, in all the bits a table uses.
func TestFlowHashSpread(t *testing.T) {
	h := makeHasher(7)
	var own, steer [3][256]int
	const n = 1 << 16
	for i := range n {
		src := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 12), byte(i >> 4)}), uint16(1024+i%16))
		f := MakeFlow(6, src, ap("192.0.2.1:80"))
		count := func(at *[3][256]int, x uint64) { at[0][x>>56]++; at[1][x>>32&255]++; at[2][x&255]++ }
		count(&own, h.words(unsafe.Pointer(&f), 40))
		count(&steer, f.Hash(0))
	}
	for _, at := range [][3][256]int{own, steer} {
		for byteNo := range at {
			chi := 0.0
			for _, c := range at[byteNo] {
				d := float64(c) - n/256
				chi += d * d / (n / 256)
			}
			require.Less(t, chi, 400.0, "255 degrees of freedom: more than six standard deviations")
		}
	}
}

func TestHasherSeesEveryByte(t *testing.T) {
	h := makeHasher(3)
	r := rand.New(rand.NewPCG(1, 1))
	for n := uintptr(1); n <= 64; n++ {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		was := h.words(unsafe.Pointer(&b[0]), n)
		for i := range b {
			b[i] ^= 1 << r.UintN(8)
			require.NotEqual(t, was, h.words(unsafe.Pointer(&b[0]), n), "byte %d of %d", i, n)
			was = h.words(unsafe.Pointer(&b[0]), n)
		}
	}
}

// A look-up compares all of a key: one that differs in any one or two bits is another,
// even where the tags are the same.
func TestAllBitsOfAKeyCount(t *testing.T) {
	tab := must(New(&Config[[5]uint64, uint64]{MaxEntries: 8}))
	defer tab.Close()
	flows := must(New(&Config[Flow, uint64]{MaxEntries: 8}))
	defer flows.Close()
	now := time.Now()
	ones := [5]uint64{^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0)}
	for _, k := range [][5]uint64{{}, ones, {0, 0xffff0a000001, 0, 0xffffc0000201, 3<<40 | 6<<32 | 1<<16 | 80}} {
		f := Flow{k[0], k[1], k[2], k[3], k[4]}
		require.NoError(t, tab.StoreAt(now, k, 1))
		require.NoError(t, flows.StoreAt(now, f, 1))
		no, home, tag := tab.home(tab.hashOf(&k))
		slot, ok := tab.find(&tab.shards[no], home, tag, &k)
		require.True(t, ok)
		no, home, tag = flows.home(flows.hashOf(&f))
		at, ok := flows.find(&flows.shards[no], home, tag, &f)
		require.True(t, ok)
		for i := range 320 {
			for j := i; j < 320; j++ {
				o := k
				o[i/64] ^= 1 << (i % 64)
				if j != i {
					o[j/64] ^= 1 << (j % 64)
				}
				g := Flow{o[0], o[1], o[2], o[3], o[4]}
				_, r := tab.hit(slot, &o, tab.tick(now), false)
				_, q := flows.hit(at, &g, flows.tick(now), false)
				if r != hitNo || q != hitNo || tab.sameKey(slot, &o) || flows.sameKey(at, &g) {
					t.Fatalf("%x found for %x", k, o)
				}
			}
		}
	}
}
