package steering

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/lbprim/lbprim/internal/enum"
)

// Config configures a [Pool]. A nil Config and every zero field take the default. It is
// plain data, copied when used.
type Config struct {
	// Metric chooses among the nodes. Default LeastConns.
	Metric Metric
	// Seed changes where cyclic metrics start and what hashes yield, so that a fleet of
	// balancers does not move in step. 0 starts at the first node. Balancers that must
	// agree share one seed.
	Seed uint64
	// IDs gives out the node ids. Pools behind one client table must share one.
	// Default: an allocator of the pool's own.
	IDs *IDs

	// ClientBits is how much of an IPv4 client address MinMisses looks at: 24 (the
	// default) leaves out the last octet, 32 takes all. Of IPv6 addresses they take the
	// upper 64 bits and all bits.
	ClientBits int
	// TableSize is the size of the Maglev table, a prime from 3 to 16,777,216. Default 65537. It should be
	// at least 100 times the number of nodes.
	TableSize int
	// Buckets is the number of buckets of the Capacity metric, 2 to 16,777,216. Default 256.
	Buckets int

	// Backup says when backup nodes are used. Default BackupWhenDownOrFull.
	Backup BackupRule
	// NoPreempt lets the backups, once they took over because no member was left, keep
	// the new sessions after members came back, until no backup can be used or
	// Revert is called.
	NoPreempt bool
	// StartDown has nodes wait for the first SetUp. Default: nodes start up. The first
	// SetUp of a node present from the start begins neither a recovery time nor a slow
	// start.
	StartDown bool
	// RecoveryTime is how long a node that came up again gets nothing. Default 0. It
	// ends in Run or Step.
	RecoveryTime time.Duration
	// SlowStart is how long a node's share then rises from 1/32 to its full weight, for
	// nodes that came up again, were enabled again or were added to a running pool.
	// Default 0. It advances in Run or Step.
	SlowStart time.Duration
	// PanicPercent turns panic mode on: while fewer than this part of the members are
	// up, in percent, 1 to 100, health is not looked at and all are served. Default 0, off.
	PanicPercent int
	// StickyOverLimit lets Acquire go over a node's limit, and to a node under severe
	// pressure. Default: no; the metric chooses, the binding is the caller's to keep.
	StickyOverLimit bool

	// Pressure turns gauges into levels.
	Pressure Pressure
	// Interval is the length of the intervals in which Bandwidth counts octets, as Run
	// keeps them. Default 10 s.
	Interval time.Duration
}

// A BackupRule says when backup nodes get new sessions.
type BackupRule uint8

const (
	// BackupWhenDownOrFull uses them when every member is down, at its limit or under
	// severe pressure.
	BackupWhenDownOrFull BackupRule = iota
	// BackupWhenDown uses them only when no member is up and enabled.
	BackupWhenDown
)

var backupNames = enum.Of[BackupRule]("steering: backup rule", "down-or-full", "down")

// String returns the name of r as used in configurations.
func (r BackupRule) String() string { return backupNames.String(r) }

// AppendText implements [encoding.TextAppender].
func (r BackupRule) AppendText(b []byte) ([]byte, error) { return backupNames.Append(b, r) }

// MarshalText implements [encoding.TextMarshaler].
func (r BackupRule) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (r *BackupRule) UnmarshalText(text []byte) error { return backupNames.Parse(r, text) }

// ErrInvalid is wrapped by every fault of a configuration.
var ErrInvalid = errors.New("invalid configuration")

// A FieldError is one fault of a configuration: the field, its value, and what would be
// valid. All faults are reported at once, joined.
type FieldError struct {
	Field string // such as "Config.TableSize"
	Value any    // that it has
	Want  string // what would be valid, for people
}

func (e *FieldError) Error() string {
	return fmt.Sprintf("steering: %s = %v: want %s", e.Field, e.Value, e.Want)
}

// Unwrap returns [ErrInvalid].
func (e *FieldError) Unwrap() error { return ErrInvalid }

// resolve returns c with defaults filled in, or its faults.
func (c *Config) resolve() (Config, error) {
	var r Config
	if c != nil {
		r = *c
	}
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, &FieldError{field, value, want})
	}
	if int(r.Metric) >= metricNames.Len() {
		bad("Config.Metric", r.Metric, "a metric of this package")
	}
	if int(r.Backup) >= backupNames.Len() {
		bad("Config.Backup", r.Backup, "a backup rule of this package")
	}
	def(&r.ClientBits, 24)
	if r.ClientBits != 24 && r.ClientBits != 32 {
		bad("Config.ClientBits", r.ClientBits, "24 or 32")
	}
	def(&r.TableSize, DefaultTableSize)
	if r.TableSize < 3 || r.TableSize > maxTableSize || !isPrime(r.TableSize) {
		bad("Config.TableSize", r.TableSize, fmt.Sprintf("a prime from 3 to %d", maxTableSize))
	}
	def(&r.Buckets, DefaultBuckets)
	if r.Buckets < 2 || r.Buckets > maxTableSize {
		bad("Config.Buckets", r.Buckets, fmt.Sprintf("2 to %d", maxTableSize))
	}
	if r.PanicPercent < 0 || r.PanicPercent > 100 {
		bad("Config.PanicPercent", r.PanicPercent, "0 to 100")
	}
	if r.RecoveryTime < 0 {
		bad("Config.RecoveryTime", r.RecoveryTime, "0 or more")
	}
	if r.SlowStart < 0 {
		bad("Config.SlowStart", r.SlowStart, "0 or more")
	}
	def(&r.Interval, 10*time.Second)
	if r.Interval < 0 {
		bad("Config.Interval", r.Interval, "more than 0")
	}
	r.Pressure.validate("Config.Pressure", bad)
	r.Pressure = r.Pressure.withDefaults()
	return r, errors.Join(errs...)
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Validate reports the faults of p, all at once.
func (p Pressure) Validate() error {
	var errs []error
	p.validate("Pressure", func(field string, value any, want string) {
		errs = append(errs, &FieldError{field, value, want})
	})
	return errors.Join(errs...)
}

func (p *Pressure) validate(prefix string, bad func(string, any, string)) {
	for _, g := range []struct {
		name string
		t    *Thresholds
	}{{"Memory", &p.Memory}, {"CPU", &p.CPU}, {"Sessions", &p.Sessions}, {"Latency", &p.Latency}} {
		t, field := g.t, prefix+"."+g.name
		for _, x := range []float64{t.HighRise, t.HighFall, t.SevereRise, t.SevereFall} {
			if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
				bad(field, *t, "finite thresholds of 0 or more")
				break
			}
		}
		if t.HighFall > t.HighRise {
			bad(field+".HighFall", t.HighFall, fmt.Sprintf("at most HighRise, %v", t.HighRise))
		}
		if t.SevereFall > t.SevereRise {
			bad(field+".SevereFall", t.SevereFall, fmt.Sprintf("at most SevereRise, %v", t.SevereRise))
		}
		if t.HighRise > 0 && t.SevereRise > 0 && t.SevereRise < t.HighRise {
			bad(field+".SevereRise", t.SevereRise, fmt.Sprintf("at least HighRise, %v", t.HighRise))
		}
	}
}

// validateNodes reports the faults of nodes, all at once.
func validateNodes(metric Metric, nodes []Node) error {
	var errs []error
	if len(nodes) > MaxNodes {
		errs = append(errs, &FieldError{"nodes", len(nodes), fmt.Sprintf("at most %d", MaxNodes)})
	}
	seen := make(map[string]int, len(nodes))
	stated, unstated := -1, -1
	for i := range nodes {
		n := &nodes[i]
		bad := func(field string, value any, want string) {
			errs = append(errs, &FieldError{fmt.Sprintf("Node[%d] %q.%s", i, n.Name, field), value, want})
		}
		if n.Name == "" {
			bad("Name", `""`, "a name")
		} else if j, dup := seen[n.Name]; dup {
			bad("Name", n.Name, fmt.Sprintf("a name of its own, Node[%d] has this one", j))
		}
		seen[n.Name] = i
		if n.Weight < ZeroWeight || n.Weight > MaxWeight {
			bad("Weight", n.Weight, fmt.Sprintf("1 to %d, 0 for the default of 1, or ZeroWeight", MaxWeight))
		}
		if n.MaxSessions < 0 {
			bad("MaxSessions", n.MaxSessions, "0 (no limit) or more")
		}
		if n.Capacity < 0 || n.Capacity > MaxCapacity {
			bad("Capacity", n.Capacity, fmt.Sprintf("0 to %d", MaxCapacity))
		}
		if n.Capacity > 0 {
			stated = i
		} else if n.weight() > 0 {
			unstated = i
		}
		if int(n.Admin) >= adminNames.Len() {
			bad("Admin", n.Admin, "an admin state of this package")
		}
	}
	if metric == Capacity && stated >= 0 && unstated >= 0 {
		errs = append(errs, &FieldError{fmt.Sprintf("Node[%d] %q.Capacity", unstated, nodes[unstated].Name), 0,
			fmt.Sprintf("a capacity, since Node[%d] states one: either all do or none", stated)})
	}
	return errors.Join(errs...)
}
