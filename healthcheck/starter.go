package healthcheck

import (
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"
)

// A Starter is a [Prober] that can also begin a probe and return at once, so that
// thousands of probes need neither goroutines nor contexts of their own. A [Monitor]
// that runs asks for that first; what calls the Prober itself, as [Monitor.Step] does,
// calls Probe. Both must come to the same results.
type Starter interface {
	Prober
	// Start begins a probe of target, and does nothing that waits. What probes share
	// they keep in s. done is called once with the result, soon after deadline at the
	// latest, from any goroutine, perhaps before Start returns; it does not block for
	// long.
	//
	// stop ends the probe early; done is called then, too, if it has not been, perhaps
	// before stop returns. It may be called at any time and more than once. A nil stop
	// says that this probe cannot be made this way: Probe is to be called, and done
	// never is.
	Start(s *Scope, target netip.AddrPort, deadline time.Time, done func(Result)) (stop func())
}

// A Scope is what the probes begun by a [Starter] share: sockets, pollers. Whoever
// starts probes makes one, as a [Monitor] does for each Run, and closes it at the end.
// The zero Scope is empty and ready for use. It must not be copied, and is safe for
// concurrent use.
type Scope struct {
	mu     sync.Mutex
	shared map[any]io.Closer
	closed bool
}

// ErrScopeClosed is returned by [Scope.Load] after Close.
var ErrScopeClosed = errors.New("healthcheck: scope closed")

// Load returns what is shared under a key, and calls open if it is not there yet. A
// key is of a comparable type that others do not know, as that of a context's value.
func (s *Scope) Load(key any, open func() (io.Closer, error)) (io.Closer, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.shared[key]; ok {
		return c, nil
	}
	if s.closed {
		return nil, ErrScopeClosed
	}
	c, err := open()
	if err != nil {
		return nil, err
	}
	if s.shared == nil {
		s.shared = map[any]io.Closer{}
	}
	s.shared[key] = c
	return c, nil
}

// Close closes all that is shared, which ends the probes that use it, and waits for
// that. Nothing is shared any more after it.
func (s *Scope) Close() error {
	s.mu.Lock()
	shared := s.shared
	s.shared, s.closed = nil, true
	s.mu.Unlock()
	var errs []error
	for _, c := range shared {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
