package healthcheck

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// The defaults of a [Check], and the bounds of its times.
const (
	DefaultInterval = 5 * time.Second
	DefaultRise     = 1
	DefaultFall     = 3
	MinInterval     = 10 * time.Millisecond
	MaxInterval     = 24 * time.Hour
	MaxHoldDown     = 366 * 24 * time.Hour
	maxCount        = 1 << 20
)

// Check is one target to be probed on a schedule: an element, in the words of
// boolean policies. Zero fields mean the defaults named. It is a plain value.
type Check struct {
	// ID names the check; unique within a [Monitor]. Required.
	ID string
	// Target is whom Prober probes. Required; the port may be 0 for probers that
	// need none.
	Target netip.AddrPort
	// Prober makes one probe. Required.
	Prober Prober

	// Interval between probes; 10 ms to 24 h, default 5 s.
	Interval time.Duration
	// FastInterval between probes while the state is about to change: after a
	// failure that was not yet enough to fail, and after a pass that was not yet
	// enough to rise. Default a fifth of Interval, but at least 10 ms; never more
	// than Interval.
	FastInterval time.Duration
	// Timeout of one probe, from start to verdict; 1 ms to 24 h. Default Interval.
	Timeout time.Duration
	// Rise is how many passes in a row make the target active; default 1, at most 1,048,576. (The ADX
	// calls it bring-up retries.)
	Rise int
	// Fall is how many failures in a row fail it; default 3, that is 2 retries; at most 1,048,576.
	Fall int
	// HoldDown is how long a target that failed must stay good before it is active
	// again; default 0, none, at most 366 days. Nothing shortens it but the target's removal.
	HoldDown time.Duration
	// NoKeepalive ends the probes once the target is active. It is probed again
	// after a failure reported by [Monitor.Report].
	NoKeepalive bool
	// BringUpLast lets the repeated probes of a bring-up wait until every other
	// check being brought up had its first, for at most one Interval. For plain UDP
	// checks, with Rise 2: the second datagram, a while after the first, meets the
	// port unreachable that the first one brought.
	BringUpLast bool

	// watched checks have their results reported to a Roster.
	watched bool
}

// withDefaults returns c with the defaults filled in.
func (c Check) withDefaults() Check {
	if c.Interval == 0 {
		c.Interval = DefaultInterval
	}
	if c.FastInterval == 0 {
		c.FastInterval = min(c.Interval, max(c.Interval/5, MinInterval))
	}
	if c.Timeout == 0 {
		c.Timeout = c.Interval
	}
	if c.Rise == 0 {
		c.Rise = DefaultRise
	}
	if c.Fall == 0 {
		c.Fall = DefaultFall
	}
	return c
}

// Validate reports every field of c that is wrong, joined.
func (c Check) Validate() error {
	d := c.withDefaults()
	var errs []error
	bad := func(field string, value any, want string) {
		errs = append(errs, fmt.Errorf("healthcheck: check %q: %s %v, want %s", c.ID, field, value, want))
	}
	if c.ID == "" {
		bad("ID", `""`, "a name")
	}
	if !c.Target.Addr().IsValid() {
		bad("Target", c.Target, "an address and port")
	}
	if c.Prober == nil {
		bad("Prober", nil, "a prober")
	}
	if d.Interval < MinInterval || d.Interval > MaxInterval {
		bad("Interval", c.Interval, "10ms to 24h")
	}
	if c.FastInterval != 0 && (d.FastInterval < MinInterval || d.FastInterval > d.Interval) {
		bad("FastInterval", c.FastInterval, "10ms to Interval")
	}
	if c.Timeout != 0 && (d.Timeout < time.Millisecond || d.Timeout > MaxInterval) {
		bad("Timeout", c.Timeout, "1ms to 24h")
	}
	if d.Rise < 1 || d.Rise > maxCount {
		bad("Rise", c.Rise, "1 to 1048576")
	}
	if d.Fall < 1 || d.Fall > maxCount {
		bad("Fall", c.Fall, "1 to 1048576")
	}
	if d.HoldDown < 0 || d.HoldDown > MaxHoldDown {
		bad("HoldDown", c.HoldDown, "0 or up to 366 days")
	}
	return errors.Join(errs...)
}

func (c *Check) limits(draining bool) limits {
	return limits{rise: int32(c.Rise), fall: int32(c.Fall), hold: int64(c.HoldDown), draining: draining}
}
