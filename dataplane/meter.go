package dataplane

// The packets of a session are counted by direction, for several workers at once. Both numbers of a direction share
// a word of the record, so that a packet costs one addition and no more; the word is emptied into wider numbers
// long before it can overflow: at 2^22 packets. These have fewer than 2^38 octets, and some 2^32 may be there from
// before: far less than the word holds, however many workers add to it meanwhile.
const (
	octetBits    = 40 // word: packets << octetBits | octets
	spillPackets = 22
	spillOctets  = 32
)

// spill is what has been emptied out of a word.
type spill struct {
	packets uint32 // in units of 1 << spillPackets
	octets  uint32 // in units of 1 << spillOctets
}

// meter counts a packet of n bytes, and returns how many there were since the word was last emptied.
func (r *record) meter(dir uint32, n int) (packets uint64) {
	packets = r.word[dir].Add(1<<octetBits+uint64(n)) >> octetBits
	if packets >= 1<<spillPackets {
		r.spill(dir)
	}
	return packets
}

// credit counts many packets at once.
func (r *record) credit(dir uint32, c Count) {
	r.lock.acquire()
	r.spilt[dir].packets += uint32(c.Packets >> spillPackets)
	r.spilt[dir].octets += uint32(c.Octets >> spillOctets)
	w := r.word[dir].Add(c.Packets&(1<<spillPackets-1)<<octetBits + c.Octets&(1<<spillOctets-1))
	r.lock.release()
	if w>>octetBits >= 1<<spillPackets {
		r.spill(dir)
	}
}

// spill empties a word.
func (r *record) spill(dir uint32) {
	r.lock.acquire()
	defer r.lock.release()
	w := r.word[dir].Load()
	packets, octets := w>>octetBits>>spillPackets, w&(1<<octetBits-1)>>spillOctets
	r.spilt[dir].packets += uint32(packets)
	r.spilt[dir].octets += uint32(octets)
	r.word[dir].Add(-(packets<<spillPackets<<octetBits + octets<<spillOctets))
}

// counts returns what was counted so far.
func (r *record) counts() (c [2]Count) {
	r.lock.acquire()
	defer r.lock.release()
	for dir := range c {
		w := r.word[dir].Load()
		c[dir].Packets = w>>octetBits + uint64(r.spilt[dir].packets)<<spillPackets
		c[dir].Octets = w&(1<<octetBits-1) + uint64(r.spilt[dir].octets)<<spillOctets
	}
	return c
}

// setCounts makes the counts what they were, of a session that is in no table yet and began at a tick.
func (r *record) setCounts(begun uint32, c [2]Count) {
	r.begun = begun
	for dir, n := range c {
		r.spilt[dir] = spill{uint32(n.Packets >> spillPackets), uint32(n.Octets >> spillOctets)}
		r.word[dir].Store(n.Packets&(1<<spillPackets-1)<<octetBits + n.Octets&(1<<spillOctets-1))
	}
}
