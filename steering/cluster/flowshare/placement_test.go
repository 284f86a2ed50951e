package flowshare

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

func names(n int) (ns []string) {
	for i := range n {
		ns = append(ns, fmt.Sprintf("member-%d", i))
	}
	return ns
}

// TestPlacementByDefinition compares with the definition: the k highest scores.
func TestPlacementByDefinition(t *testing.T) {
	p := NewPlacement(nil, names(20), 3)
	for slot := 0; slot < Slots; slot += 97 {
		order := make([]uint16, 20)
		for i := range order {
			order[i] = uint16(i)
		}
		slices.SortFunc(order, func(a, b uint16) int {
			if score(p.seeds[a], slot) > score(p.seeds[b], slot) {
				return -1
			}
			return 1
		})
		require.Equal(t, order[:3], p.Holders(slot))
	}
}

// TestPlacementSteps: from a former placement comes the same as from nothing, in any order.
func TestPlacementSteps(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var p *Placement
	for range 12 {
		ns := names(40)
		r.Shuffle(len(ns), func(i, j int) { ns[i], ns[j] = ns[j], ns[i] })
		ns = ns[:1+r.IntN(40)]
		p = NewPlacement(p, ns, 2)
		q := NewPlacement(nil, ns, 2)
		require.Equal(t, q, p)
	}
	require.Nil(t, NewPlacement(p, nil, 2).Holders(0))
}

// TestPlacementMoves: who goes takes nobody else's flows along, and shares are even.
func TestPlacementMoves(t *testing.T) {
	const n, k = 50, 2
	p := NewPlacement(nil, names(n), k)
	held := make([]int, n)
	for slot := range Slots {
		for _, h := range p.Holders(slot) {
			held[h]++
		}
	}
	for _, h := range held {
		require.InDelta(t, Slots*k/n, h, float64(Slots*k/n)/6)
	}
	q := NewPlacement(p, slices.DeleteFunc(names(n), func(s string) bool { return s == "member-7" }), k)
	for slot := range Slots {
		before, after := p.Holders(slot), q.Holders(slot)
		kept := 0
		for _, h := range before {
			if p.Names()[h] == "member-7" {
				kept++
				continue
			}
			for _, g := range after {
				if q.Names()[g] == p.Names()[h] {
					kept++
				}
			}
		}
		require.Equal(t, k, kept)
	}
	require.Equal(t, 7, p.index(p.Names()[7]))
	require.Equal(t, -1, p.index("nobody"))
}
