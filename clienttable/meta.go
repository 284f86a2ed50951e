package clienttable

// The first word of a slot, its meta, is all there is to an entry besides key and
// value:
//
//	63                      24 23     16 15 14  13   12  11       0
//	+-------------------------+---------+-----+-----+----+---------+
//	| expiry, ms since epoch  | TTL no. |class|fixed|live| version |
//	+-------------------------+---------+-----+-----+----+---------+
//
// A look-up reads meta, key and value, and then checks that meta is the same, or,
// when it restarts the idle time, compares and swaps it, which checks the same in
// one step: whoever writes key or value first clears live and counts version up.
// The 40 bits of expiry last 34 years and are compared modulo 2^40, so that no
// wrap forgets or keeps anything; a version would have to go round while expiry
// and all else stay the same.
const (
	metaVersion = 1<<12 - 1
	metaLive    = 1 << 12
	metaFixed   = 1 << 13
	metaClassAt = 14
	metaClass   = 3 << metaClassAt
	metaTTLAt   = 16
	metaTTL     = 0xff << metaTTLAt
	metaExpAt   = 24
	metaExp     = ^uint64(1<<metaExpAt - 1)
)

func metaClassOf(m uint64) Class { return Class(m >> metaClassAt & 3) }

// metaGone reports whether the entry with meta m has expired at now.
func metaGone(m uint64, now int64) bool {
	return int64(m&metaExp-uint64(now)<<metaExpAt) <= 0 && m&metaClass != uint64(Static)<<metaClassAt
}

// metaLeft returns the milliseconds until m expires; negative if it has.
func metaLeft(m uint64, now int64) int64 {
	return int64(m&metaExp-uint64(now)<<metaExpAt) >> metaExpAt
}

// nextVersion returns the version of m counted up, not live.
func nextVersion(m uint64) uint64 { return (m + 1) & metaVersion }
