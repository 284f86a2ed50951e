package policy

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// Prefixes that are all alike to the hash with its first seed are told apart with another one.
func TestPrefixesOfOneHash(t *testing.T) {
	at := func(hi, lo uint64) netip.Prefix {
		b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, hi), lo)
		return netip.PrefixFrom(netip.AddrFrom16([16]byte(b)), 128)
	}
	var rules []Rule[int]
	var packets []Packet
	add := func(p netip.Prefix) {
		rules = append(rules, Rule[int]{Name: p.String(), Match: Match{Dst: p}, Value: len(rules)})
		packets = append(packets, Packet{Protocol: 6, Src: netip.MustParseAddrPort("[2001:db8::1]:1000"), Dst: netip.AddrPortFrom(p.Addr(), 80)})
	}
	for i := range uint64(50) {
		add(at(0x9e3779b97f4a7c15^128, i)) // the one factor is zero
		add(at(1<<60|i, 0xd6e8feb86659fd93))
	}
	require.Equal(t, hash6(u128{0x9e3779b97f4a7c15 ^ 128, 1}, 128, 0), hash6(u128{0x9e3779b97f4a7c15 ^ 128, 2}, 128, 0))
	table, err := Compile(nil, rules...)
	require.NoError(t, err)
	for i, p := range packets {
		got, ok := table.Lookup(p)
		require.True(t, ok)
		require.Equal(t, i, got)
	}
}
