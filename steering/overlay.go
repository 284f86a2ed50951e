package steering

import (
	"encoding/binary"
	"math/bits"
	"slices"
)

// maxDraws bounds the draws for one slot; when all meet nodes that are down, the slot
// goes by highest score among the living ones. Both ways move only slots of the node
// that changed.
const maxDraws = 256

// An overlay lays the parts of nodes over a full table.
type overlay struct {
	t     *MaglevTable
	parts []uint8
	alive []int16
	held  []uint8 // 1 for nodes below their full part
	only  int     // the held one, -1 if there are several
	salt  uint64
}

// overlay returns false if no node is alive.
func (t *MaglevTable) overlay(parts []uint8) (o *overlay, ok bool) {
	o = &overlay{t: t, parts: parts, held: make([]uint8, max(len(parts), maxFew)), only: -1, salt: t.seed*k1 ^ k2}
	several := false
	for i, part := range parts {
		if part > 0 && t.walk[i].skip != 0 { // those of weight 0 have no walk
			o.alive = append(o.alive, int16(i))
		}
		if part < FullPart {
			o.held[i] = 1
			several = several || o.only >= 0
			o.only = i
		}
	}
	if several {
		o.only = -1
	}
	return o, len(o.alive) > 0
}

// keeps reports whether a node at a part of its share keeps one of its slots.
func (o *overlay) keeps(s uint64, i int) bool {
	part := o.parts[i]
	return part == FullPart || part > 0 && uint8(fold(s^o.t.keys[i], k3)>>58) < part
}

// lay returns a copy of base with an overlay on it.
func lay[T slot](o *overlay, base []T) []T {
	live := slices.Clone(base)
	redraw := func(s uint64) T {
		x := fold(s^o.salt, k0)
		for range maxDraws {
			x = x*6364136223846793005 + 1442695040888963407
			d := reduce(x, uint64(len(base)))
			j := base[d]
			if part := o.parts[j]; part == FullPart || part > 0 && o.keeps(d, int(j)) {
				return j
			}
		}
		return T(highest(o.alive, o.t.keys, s))
	}
	// A node's slots lie along its permutation, about q ln q steps for q slots.
	steps := 0
	for i := range o.parts {
		steps += int(o.held[i]) * int(o.t.walk[i].quota) * bits.Len32(uint32(o.t.walk[i].quota))
	}
	if steps < len(base)/walkWorth {
		for i := range o.parts {
			if o.held[i] == 0 {
				continue
			}
			w := o.t.walk[i]
			for n := w.quota; n > 0; {
				if s := w.pos; base[s] == T(i) {
					n--
					if !o.keeps(uint64(s), i) {
						live[s] = redraw(uint64(s))
					}
				}
				w.pos = wrap(w.pos+w.skip, uint32(len(base)))
			}
		}
		return live
	}
	// The slots in question are gathered first.
	var found [gatherMax]uint32
	for s := 0; s < len(base); s += gatherMax {
		n := gather(&found, s, base[s:min(s+gatherMax, len(base))], o.held, o.only)
		for _, s := range found[:n] {
			if i := int(base[s]); o.parts[i] == 0 || !o.keeps(uint64(s), i) {
				live[s] = redraw(uint64(s))
			}
		}
	}
	return live
}

// walkWorth: a step of a walk, somewhere in memory, takes as long as it takes to ask so
// many slots in a row.
const walkWorth = 2

const gatherMax = 512

// gather notes which slots, of a part of a table that begins with slot s, are of nodes
// that are held, without a branch the processor would guess wrong for one slot in N.
func gather[T slot](found *[gatherMax]uint32, s int, part []T, held []uint8, only int) (n int) {
	if only < 0 {
		for k, i := range part {
			found[n&(gatherMax-1)] = uint32(s + k)
			n += int(held[i])
		}
		return n
	}
	if few, ok := any(part).([]uint8); ok { // eight at a time
		const ones, tops = 0x0101_0101_0101_0101, 0x8080_8080_8080_8080
		for ; len(few) >= 8; few = few[8:] {
			x := binary.LittleEndian.Uint64(few) ^ uint64(only)*ones
			for m := ^(x&^tops + ^uint64(tops) | x) & tops; m != 0; m &= m - 1 {
				found[n&(gatherMax-1)] = uint32(s + bits.TrailingZeros64(m)/8)
				n++
			}
			s += 8
		}
		for k, i := range few {
			if int(i) == only {
				found[n&(gatherMax-1)] = uint32(s + k)
				n++
			}
		}
		return n
	}
	node := T(only)
	for k, i := range part {
		found[n&(gatherMax-1)] = uint32(s + k)
		if i == node {
			n++
		}
	}
	return n
}

func highest(nodes []int16, keys []uint64, key uint64) int16 {
	best, score := nodes[0], uint64(0)
	for _, i := range nodes {
		if x := fold(key^k0, keys[i]|1); x >= score {
			best, score = i, x
		}
	}
	return best
}
