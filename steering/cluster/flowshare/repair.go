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

// sums adds up, group by group, the items that p and this member should share. It is false if
// the members changed meanwhile.
func (l *Layer) sums(p *peer, groups int) ([]uint64, bool) {
	s := make([]uint64, groups)
	v := l.view
	for part := range Parts {
		l.store.Range(part, func(f Flow, it Item) bool {
			if it.Flags&Tombstone == 0 {
				h := f.Hash()
				if l.shared(p, int(h>>(64-15)), &it) {
					s[groupOf(h, groups)] += mix(h^it.Version*0x9e3779b97f4a7c15, l.about[it.Origin].seed)
				}
			}
			return true
		})
		l.breathe()
		if l.view != v {
			return nil, false
		}
	}
	return s, true
}

// compare asks p to compare.
func (l *Layer) compare(p *peer) {
	p.open, p.dirty = true, false
	p.repairAt = l.now.Add(l.jitter(repairRetry))
	p.round++
	n := l.store.Len() / groupSize
	if !l.view.full {
		n /= max(1, len(l.view.members)/2)
	}
	l.stats.Comparisons++
	if sums, ok := l.sums(p, min(1<<bits.Len(uint(n)), maxGroups)); ok {
		p.frames = append(p.frames, digestFrame(l.clock, l.view.digest, p.round, sums))
	}
}

func (l *Layer) onDigest(p *peer, m *message) {
	if m.view != l.view.digest {
		l.stats.ViewsDiffer++
		return // it will ask again
	}
	mine, ok := l.sums(p, m.groups)
	if !ok || p.gone {
		return
	}
	set := make([]byte, (m.groups+7)/8)
	differ := 0
	for i := range mine {
		if mine[i] != m.sums[i] {
			set[i/8] |= 1 << (i % 8)
			differ++
		}
	}
	p.frames = append(p.frames, diffFrame(l.clock, l.view.digest, m.round, m.groups, set))
	l.stats.GroupsDiffer += uint64(differ)
	if differ > 0 {
		l.begin(p, m.groups, set)
	}
	l.work(p)
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
	p.transfer = &transfer{groups: groups, bits: set}
}
