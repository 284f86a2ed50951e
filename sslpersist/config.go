package sslpersist

import (
	"errors"
	"fmt"
	"time"
)

// The defaults of [Config].
const (
	DefaultTTL        = 10 * time.Minute
	DefaultMaxEntries = 1 << 20
)

// Config configures a [Table]. A nil Config, and every zero field, takes the default.
type Config[N comparable] struct {
	// MaxEntries is never exceeded; default 1<<20, at most 1<<26. An entry takes about
	// 64 bytes, and only once it is there.
	MaxEntries int
	// TTL is the time after its last use that an entry is gone; default 10 minutes.
	TTL time.Duration
	// TTLOf, if not nil, is the idle time of entries bound to n; 0 or less means TTL. It is asked
	// when n gets its first entry; SetTTL changes it later. It is called with a lock held,
	// so it must not call the table.
	TTLOf func(n N) time.Duration
	// Feed is the number of changes remembered for Changes, at most 1<<24; default 0, no
	// feed. A change takes about 100 bytes, from the beginning.
	Feed int
}

// maxFeed bounds the memory that a mistyped number can take.
const maxFeed = 1 << 24

func (c *Config[N]) validate() error {
	var errs []error
	if c.MaxEntries < 0 || c.MaxEntries > maxMaxEntries {
		errs = append(errs, fmt.Errorf("sslpersist: MaxEntries is %d: want 1 to %d, or 0 for %d", c.MaxEntries, maxMaxEntries, DefaultMaxEntries))
	}
	if c.TTL < 0 {
		errs = append(errs, fmt.Errorf("sslpersist: TTL is %v: want more than 0, or 0 for %v", c.TTL, DefaultTTL))
	}
	if c.Feed < 0 || c.Feed > maxFeed {
		errs = append(errs, fmt.Errorf("sslpersist: Feed is %d: want 0 to %d changes", c.Feed, maxFeed))
	}
	return errors.Join(errs...)
}

// ttlFunc returns what to ask for the idle time of a node.
func ttlFunc[N comparable](ttl time.Duration, of func(N) time.Duration) func(N) time.Duration {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	return func(n N) time.Duration {
		if of != nil {
			if d := of(n); d > 0 {
				return d
			}
		}
		return ttl
	}
}
