package flowshare

import (
	"math/bits"
	"time"
)

// groupSize is about how many items a group of a comparison has.
const groupSize = 64

// repairRetry is how long an answer to a comparison may take.
const repairRetry = 2 * time.Second

func groupOf(hash uint64, groups int) int { return int(uint32(hash)) & (groups - 1) }

// shares calls f for each peer that should have an item as well as this member, as both would say.
func (l *Layer) shares(it *Item, slot int, f func(p *peer)) {
	if it.Flags&Unsent != 0 {
		return
	}
	if l.view.full {
		for _, p := range l.order {
			if p != nil {
				f(p)
			}
		}
		return
	}
	holders := l.view.place.Holders(slot)
	origin := int(l.about[it.Origin].at)
	mine, counted := origin == l.view.self, false
	for _, h := range holders {
		mine = mine || int(h) == l.view.self
		counted = counted || int(h) == origin
	}
	if !mine {
		return
	}
	for _, h := range holders {
		if p := l.order[h]; p != nil {
			f(p)
		}
	}
	if origin >= 0 && !counted {
		if p := l.order[origin]; p != nil {
			f(p)
		}
	}
}

// A sum is that of the items a peer and this member should share, group by group.
type sum struct {
	p      *peer
	groups []uint64
}

// sums adds up the items of some peers, in one walk for all of them: after a partition there are hundreds. It is false if the members changed
// meanwhile.
func (l *Layer) sums(of []sum) bool {
	v := l.view
	at := make([][]uint64, len(l.order))
	for _, s := range of {
		at[s.p.at] = s.groups
	}
	for part := range Parts {
		l.store.Range(part, func(f Flow, it Item) bool {
			if it.Flags&Tombstone != 0 {
				return true
			}
			h := f.Hash()
			x := mix(h^it.Version*0x9e3779b97f4a7c15, l.about[it.Origin].seed)
			l.shares(&it, int(h>>(64-15)), func(p *peer) {
				if g := at[p.at]; g != nil {
					g[groupOf(h, len(g))] += x
				}
			})
			return true
		})
		l.breathe()
		if l.view != v {
			return false
		}
	}
	return true
}

// compare asks some peers to compare.
func (l *Layer) compare(peers []*peer) {
	n := l.store.Len() / groupSize
	if !l.view.full {
		n /= max(1, len(l.view.members)/2)
	}
	groups := min(1<<bits.Len(uint(n)), maxGroups)
	var of []sum
	for _, p := range peers {
		p.open, p.dirty = true, false
		p.repairAt = l.now.Add(l.jitter(repairRetry))
		p.round++
		l.stats.Comparisons++
		of = append(of, sum{p, make([]uint64, groups)})
	}
	if !l.sums(of) {
		return // they are asked again
	}
	for _, s := range of {
		s.p.frames = append(s.p.frames, digestFrame(l.clock, l.view.digest, s.p.round, s.groups))
	}
}

// answerWait is for how long a digest waits for others, to be answered with one walk.
const answerWait = 20 * time.Millisecond

func (l *Layer) onDigest(p *peer, m *message) {
	if l.answerAt.IsZero() { // the first one: others do not put it off
		l.answerAt = l.now.Add(answerWait)
	}
	p.digest = m
	l.work(p)
}

// answer answers the digests of some peers.
func (l *Layer) answer(peers []*peer) {
	var of []sum
	for _, p := range peers {
		if p.digest.view != l.view.digest {
			l.stats.ViewsDiffer++
			p.digest = nil // it will ask again
			continue
		}
		of = append(of, sum{p, make([]uint64, p.digest.groups)})
	}
	if len(of) == 0 || !l.sums(of) {
		return
	}
	for _, s := range of {
		p, m := s.p, s.p.digest
		if p.digest = nil; len(m.sums) != len(s.groups) {
			continue // another one came meanwhile; it will ask again
		}
		set := make([]byte, (m.groups+7)/8)
		differ := 0
		for i := range s.groups {
			if s.groups[i] != m.sums[i] {
				set[i/8] |= 1 << (i % 8)
				differ++
			}
		}
		p.frames = append(p.frames, diffFrame(l.clock, l.view.digest, m.round, m.groups, set))
		l.stats.GroupsDiffer += uint64(differ)
		if differ > 0 {
			l.begin(p, m.groups, set)
		}
	}
}

func (l *Layer) onDiff(p *peer, m *message) {
	if m.round != p.round || m.view != l.view.digest || !p.open {
		l.stats.Unasked++
		return
	}
	p.open = false
	for _, b := range m.bits {
		if b != 0 {
			l.begin(p, m.groups, m.bits)
			break
		}
	}
	l.work(p)
}

// begin starts a transfer; one under way goes on and the new one waits for a comparison.
func (l *Layer) begin(p *peer, groups int, set []byte) {
	if p.transfer != nil {
		l.soil(p, repairRetry)
		return
	}
	p.transfer = &transfer{groups: groups, bits: set, part: l.transferAt, left: Parts}
}

// forward has a part of each transfer sent that the peer has room for, and says whether there is one: transfers that are at the same
// part share a walk, as do most.
func (l *Layer) forward(peers []*peer) bool {
	at := make([]*transfer, len(l.order))
	part := -1
	for _, p := range peers {
		if t := p.transfer; t != nil && !p.gone && len(p.frames) == 0 && len(p.pending) == 0 && (part < 0 || t.part == part) {
			part = t.part
			at[p.at] = t
		}
	}
	if part < 0 {
		return false
	}
	l.store.Range(part, func(f Flow, it Item) bool {
		h := f.Hash()
		l.shares(&it, int(h>>(64-15)), func(p *peer) {
			if t := at[p.at]; t != nil && t.has(groupOf(h, t.groups)) {
				l.stats.Repaired++
				p.pending = append(p.pending, f)
			}
		})
		return true
	})
	l.transferAt = (part + 1) % Parts
	for _, p := range peers {
		if t := p.transfer; t != nil && !p.gone && at[p.at] == t {
			t.part = l.transferAt
			if t.left--; t.left == 0 {
				p.transfer = nil
			}
			l.pump(p)
		}
	}
	return true
}
