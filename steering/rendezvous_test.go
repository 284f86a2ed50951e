package steering

import (
	"encoding/binary"
	"encoding/hex"
	"net/netip"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// Seeds, hashes and orders of a GLB director's table, as published.
func TestRendezvousVectors(t *testing.T) {
	var v struct {
		Seed     string                       `json:"seed_hex"`
		RowSeeds map[string]string            `json:"row_seeds"`
		Hashes   map[string]map[string]string `json:"host_hashes"`
		Order    map[string][]string
	}
	vector(t, "glb_rendezvous.json", &v)
	b, err := hex.DecodeString(v.Seed)
	require.NoError(t, err)
	key := [16]byte(b)
	require.Len(t, v.Order, 3)
	k0, k1 := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	for at, want := range v.Order {
		row, err := strconv.ParseUint(at, 0, 32)
		require.NoError(t, err)
		seed := binary.LittleEndian.AppendUint64(nil, siphash(k0, k1, binary.BigEndian.AppendUint32(nil, uint32(row))))
		require.Equal(t, v.RowSeeds[at], hex.EncodeToString(seed))
		var nodes []netip.Addr
		for name, hash := range v.Hashes[at] {
			a := netip.MustParseAddr(name)
			nodes = append(nodes, a)
			got := siphash(k0, k1, append(slices.Clip(slices.Clone(seed)), a.AsSlice()...))
			require.Equal(t, hash, hex.EncodeToString(binary.LittleEndian.AppendUint64(nil, got)))
		}
		var order []string
		for _, i := range NewRendezvous(key, nodes...).Row(uint32(row)) {
			order = append(order, nodes[i].String())
		}
		require.Equal(t, want, order)
	}
	var more struct {
		GLB struct {
			Seed string
			Rows []struct {
				Index   uint32
				RowSeed string `json:"row_seed"`
				Order   []string
			}
		} `json:"glb_rendezvous"`
	}
	vector(t, "vectors.json", &more)
	require.Equal(t, v.Seed, more.GLB.Seed)
	require.NotEmpty(t, more.GLB.Rows)
	for _, row := range more.GLB.Rows {
		nodes := []netip.Addr{netip.MustParseAddr("1.1.1.1"), netip.MustParseAddr("::ffff:1.1.1.2"), netip.MustParseAddr("1.1.1.3"), netip.MustParseAddr("1.1.1.4")}
		var order []string
		for _, i := range NewRendezvous(key, nodes...).Row(row.Index) {
			order = append(order, nodes[i].Unmap().String())
		}
		require.Equal(t, row.Order, order)
	}
}

// The reference vectors of SipHash-2-4: key 00 01 … 0f, messages empty, 00, 00 01, ….
func TestSipHash(t *testing.T) {
	var key, in [16]byte
	for i := range key {
		key[i], in[i] = byte(i), byte(i)
	}
	k0, k1 := binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
	require.EqualValues(t, uint64(0x726fdb47dd0e0e31), siphash(k0, k1, nil))
	require.EqualValues(t, uint64(0xa129ca6149be45e5), siphash(k0, k1, in[:15]))
}

// Rows share nodes evenly; without one node the others stay in their order; the order in which
// nodes are given does not matter.
func TestRendezvousProperties(t *testing.T) {
	key := [16]byte{1, 2, 3}
	nodes := make([]netip.Addr, 10)
	for i := range nodes {
		nodes[i] = netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})
		if i%2 == 1 {
			nodes[i] = netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: byte(i)})
		}
	}
	all := NewRendezvous(key, nodes...)
	fewer := NewRendezvous(key, nodes[:9]...)
	back := slices.Clone(nodes)
	slices.Reverse(back)
	turned := NewRendezvous(key, back...)
	first := make([]int, len(nodes))
	for row := range uint32(5000) {
		order := all.Row(row)
		first[order[0]]++
		for i, j := range turned.Row(row) {
			require.Equal(t, order[i], len(nodes)-1-j)
		}
		require.Equal(t, slices.DeleteFunc(order, func(i int) bool { return i == 9 }), fewer.Row(row))
	}
	for _, n := range first {
		require.InDelta(t, 500, n, 100)
	}
	require.Empty(t, new(Rendezvous).Row(7))
}
