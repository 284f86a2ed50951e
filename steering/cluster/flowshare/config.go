package flowshare

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// The defaults of [Config].
const (
	DefaultThreshold   = 8
	DefaultHolders     = 2
	DefaultMaxFlows    = 1 << 20
	DefaultMaxPending  = 1 << 14
	DefaultBatch       = 5 * time.Millisecond
	DefaultMaxFrame    = 32 << 10
	DefaultAskTimeout  = 50 * time.Millisecond
	DefaultMaxAsks     = 1024
	DefaultOrphans     = 15 * time.Minute
	DefaultTombstones  = time.Minute
	DefaultRepairEvery = 10 * time.Second
)

// A Transport takes frames to other members. It must not block, may lose frames if it
// says so by [Layer.Lost], must keep the order of those it does not lose, and must not call
// the Layer from within Send.
type Transport interface {
	// Send takes a frame and reports whether it has room for it; the Layer tries again. The
	// frame belongs to the Transport from then on if so. Urgent frames are asks and answers,
	// which may overtake others.
	Send(to Member, frame []byte, urgent bool) bool
}

// Config configures a [Layer]. Self and Transport are required; every other zero field takes
// its default.
type Config struct {
	// Self is this member; its Name has 1 to 255 bytes.
	Self Member
	// Transport takes frames to the others.
	Transport Transport
	// Store keeps the items. Default: in memory.
	Store Store

	// Threshold is up to how many members everyone holds every flow. Default 8; 2 to 64; -1: never.
	// All members must have the same Threshold and Holders.
	Threshold int
	// Holders is how many members hold a flow beyond Threshold, besides its origin. Default 2; 1 to MaxHolders.
	Holders int

	// MaxFlows bounds the items, tombstones included: 100 to 150 bytes each in the memory
	// Store. Flows beyond are not shared, which is counted. Default 1,048,576; at most 2^30.
	MaxFlows int
	// MaxPending bounds the flows waiting to be sent to one member; beyond that they are
	// found by comparison, later. 40 bytes each. Default 16,384; 16 to 2^24.
	MaxPending int
	// MaxFrame bounds a frame sent, in bytes. Default 32 KiB, at least 1,500. Frames of up to
	// [MaxFrame] are accepted.
	MaxFrame int
	// MaxRate bounds what is sent, in bytes a second, over all members. Asks and answers are
	// sent in any case, and count. 10,000 to 2^30. Default: no bound.
	MaxRate int

	// Batch is for how long announcements are collected. Default 5 ms; 100 µs to 1 s.
	Batch time.Duration
	// AskTimeout is how long an ask may take. Default 50 ms; 1 ms to 10 s.
	AskTimeout time.Duration
	// MaxAsks bounds the asks under way; further ones find nothing at once. Default 1024; at most 2^20.
	MaxAsks int
	// Orphans is how long entries of an origin that is gone are kept. Default 15 min; 1 s or more.
	Orphans time.Duration
	// Tombstones is how long it is remembered that an entry was taken back. Default 1 min; 1 s to 24 h.
	Tombstones time.Duration
	// RepairEvery is how often this member compares with one of the others. Default 10 s; 100 ms to 1 h.
	RepairEvery time.Duration

	// Alike says which value any member would find for a flow by its configuration alone.
	// Such flows are not announced as long as that holds; see [Layer.Retable]. It is called with
	// the Layer's lock held and must not call it. Default: nobody chooses alike.
	Alike func(Flow) (Value, bool)
	// OnConflict is told when another member gave a flow announced here to another node and
	// won. It is called with the Layer's lock held and must not call it.
	OnConflict func(f Flow, mine, theirs Value)
	// Place computes placements, see [NewPlacement]; a simulation shares them.
	Place func(prev *Placement, names []string, k int) *Placement
	// Rand spreads comparisons. Default: seeded by the system.
	Rand *rand.Rand
}

// MaxFrame is the size of the largest frame that is accepted.
const MaxFrame = 1 << 20

func (c *Config) withDefaults() (Config, error) {
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("flowshare: Config.%s is %v: want %s", field, value, want))
	}
	if c == nil {
		c = new(Config)
	}
	n := *c
	if n.Self.Name == "" || len(n.Self.Name) > MaxName {
		bad("Self.Name", fmt.Sprintf("%q", n.Self.Name), "1 to 255 bytes")
	}
	if n.Transport == nil {
		bad("Transport", nil, "a transport")
	}
	if n.Store == nil {
		n.Store = new(memory)
	}
	whole := func(field string, v *int, fallback, least, most int) {
		switch {
		case *v == 0:
			*v = fallback
		case *v < least || *v > most:
			bad(field, *v, fmt.Sprintf("%d to %d, or 0 for %d", least, most, fallback))
		}
	}
	if n.Threshold == -1 {
		n.Threshold = 1
	} else {
		whole("Threshold", &n.Threshold, DefaultThreshold, 2, 64)
	}
	whole("Holders", &n.Holders, DefaultHolders, 1, MaxHolders)
	whole("MaxFlows", &n.MaxFlows, DefaultMaxFlows, 1, 1<<30)
	whole("MaxPending", &n.MaxPending, DefaultMaxPending, 16, 1<<24)
	whole("MaxFrame", &n.MaxFrame, DefaultMaxFrame, 1500, MaxFrame)
	whole("MaxRate", &n.MaxRate, 0, 10_000, 1<<30)
	whole("MaxAsks", &n.MaxAsks, DefaultMaxAsks, 1, 1<<20)
	span := func(field string, v *time.Duration, fallback, least, most time.Duration) {
		switch {
		case *v == 0:
			*v = fallback
		case *v < least || *v > most:
			bad(field, *v, fmt.Sprintf("%v to %v, or 0 for %v", least, most, fallback))
		}
	}
	span("Batch", &n.Batch, DefaultBatch, 100*time.Microsecond, time.Second)
	span("AskTimeout", &n.AskTimeout, DefaultAskTimeout, time.Millisecond, 10*time.Second)
	span("Orphans", &n.Orphans, DefaultOrphans, time.Second, 1<<31*time.Second)
	span("Tombstones", &n.Tombstones, DefaultTombstones, time.Second, 24*time.Hour)
	span("RepairEvery", &n.RepairEvery, DefaultRepairEvery, 100*time.Millisecond, time.Hour)
	if n.Place == nil {
		n.Place = NewPlacement
	}
	if n.Rand == nil {
		n.Rand = rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))
	}
	return n, errors.Join(errs...)
}
