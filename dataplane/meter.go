package dataplane

import "sync/atomic"

// meter counts the packets of a session by direction, for several workers at once. Both numbers of a
// direction share a word, so that a packet costs one addition and no more; the word is emptied into wider
// numbers long before it can overflow.
type meter struct {
	word [2]atomic.Uint64 // packets << octetBits | octets
	// What has been emptied out of the words, guarded by the record's lock.
	packets [2]uint32 // in units of 1 << spillPackets
	octets  [2]uint32 // in units of 1 << spillOctets
	begun   uint32    // in ticks of the Plane's clock
	_       uint32
}

// A word is emptied at 2^22 packets. These have fewer than 2^38 octets, and some 2^32 may be there from
// before: far less than the word holds, however many workers add to it meanwhile.
const (
	octetBits    = 40
	spillPackets = 22
	spillOctets  = 32
)

// reset begins to count for a session that begins at a tick.
func (t *meter) reset(tick uint32) {
	for dir := range t.word {
		t.word[dir].Store(0)
	}
	t.packets, t.octets, t.begun = [2]uint32{}, [2]uint32{}, tick
}

// add counts a packet of n bytes.
func (t *meter) add(dir uint32, n int, rec *record) {
	if t.word[dir].Add(1<<octetBits+uint64(n))>>octetBits >= 1<<spillPackets {
		t.spill(dir, rec)
	}
}

// spill empties a word.
func (t *meter) spill(dir uint32, rec *record) {
	rec.lock.acquire()
	defer rec.lock.release()
	w := t.word[dir].Load()
	packets, octets := w>>octetBits>>spillPackets, w&(1<<octetBits-1)>>spillOctets
	t.packets[dir] += uint32(packets)
	t.octets[dir] += uint32(octets)
	t.word[dir].Add(-(packets<<spillPackets<<octetBits + octets<<spillOctets))
}

// counts returns what was counted so far.
func (t *meter) counts(rec *record) (c [2]Count) {
	rec.lock.acquire()
	defer rec.lock.release()
	for dir := range c {
		w := t.word[dir].Load()
		c[dir].Packets = w>>octetBits + uint64(t.packets[dir])<<spillPackets
		c[dir].Octets = w&(1<<octetBits-1) + uint64(t.octets[dir])<<spillOctets
	}
	return c
}

// set makes the counts what they were, of a session that is in no table yet.
func (t *meter) set(c [2]Count) {
	for dir, n := range c {
		t.packets[dir], t.octets[dir] = uint32(n.Packets>>spillPackets), uint32(n.Octets>>spillOctets)
		t.word[dir].Store(n.Packets&(1<<spillPackets-1)<<octetBits + n.Octets&(1<<spillOctets-1))
	}
}
