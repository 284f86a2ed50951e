package sslpersist

import (
	"errors"
	"fmt"
	"time"
)

// DefaultPort is the port watched where [Settings] names none.
const DefaultPort = 443

// Settings are those of one server farm; N is the caller's handle of a node. A nil
// Settings, and every zero field, takes the default.
type Settings[N comparable] struct {
	// Name of the farm for balancers that follow its tables, the same at all of them. Default none.
	Name string
	// Off makes the farm watch no port: persistence is on where a farm asks for it, which
	// is by making a Farm. SetOff changes it later.
	Off bool
	// Ports are the destination ports to watch; default 443 alone.
	Ports []uint16

	// MaxEntries, TTL, TTLOf and Feed are those of Config. The idle times and Feed hold for
	// key names and client addresses as well, each table having its own feed.
	MaxEntries int
	TTL        time.Duration
	TTLOf      func(n N) time.Duration
	Feed       int

	// WaitFinished learns an ID that a server issues only when the server ends the handshake,
	// instead of from its hello. It costs one who wants to fill the table a whole handshake
	// for each entry.
	WaitFinished bool
	// OverLimit sends a known session to its node even if that is at its limit; by default
	// it is then placed anew, and its binding stays.
	OverLimit bool

	// Tickets also learns the key names of session tickets: with TLS 1.2 from what servers
	// issue, with TLS 1.3 from what they accept, which wants ClientAddr or a metric by the
	// client's address, see the package comment. KeyPrefix, MaxKeys and MaxOnce
	// are Prefix, MaxEntries and MaxOnce of KeyConfig, with the same defaults, and want Tickets.
	Tickets   bool
	KeyPrefix int
	MaxKeys   int
	MaxOnce   int

	// ClientAddr also binds the client's address, for connections that show neither a
	// session nor a ticket whose server is known. MaxAddrs bounds the addresses, by default like MaxEntries.
	ClientAddr bool
	MaxAddrs   int
}

func (s *Settings[N]) validate() error {
	table := Config[N]{MaxEntries: s.MaxEntries, TTL: s.TTL, Feed: s.Feed}
	errs := []error{table.validate()}
	seen := make(map[uint16]bool, len(s.Ports))
	for i, p := range s.Ports {
		if p == 0 {
			errs = append(errs, fmt.Errorf("sslpersist: Ports[%d] is 0: want 1 to 65535", i))
		}
		if seen[p] {
			errs = append(errs, fmt.Errorf("sslpersist: Ports[%d] is %d, as before: want each port once", i, p))
		}
		seen[p] = true
	}
	if !s.Tickets && (s.KeyPrefix != 0 || s.MaxKeys != 0 || s.MaxOnce != 0) {
		errs = append(errs, errors.New("sslpersist: KeyPrefix, MaxKeys or MaxOnce is set without Tickets: want Tickets too"))
	}
	if s.KeyPrefix != 0 && (s.KeyPrefix < minPrefix || s.KeyPrefix > maxKey) {
		errs = append(errs, fmt.Errorf("sslpersist: KeyPrefix is %d bytes: want %d to %d, or 0 for %d", s.KeyPrefix, minPrefix, maxKey, DefaultPrefix))
	}
	if s.MaxKeys < 0 || s.MaxKeys > maxMaxEntries {
		errs = append(errs, fmt.Errorf("sslpersist: MaxKeys is %d: want 1 to %d, or 0 for %d", s.MaxKeys, maxMaxEntries, DefaultMaxKeys))
	}
	if s.MaxOnce < 0 {
		errs = append(errs, fmt.Errorf("sslpersist: MaxOnce is %d: want 1 or more, or 0 for %d", s.MaxOnce, DefaultMaxOnce))
	}
	if s.MaxAddrs != 0 && !s.ClientAddr {
		errs = append(errs, errors.New("sslpersist: MaxAddrs is set without ClientAddr: want ClientAddr too"))
	}
	if s.MaxAddrs < 0 || s.MaxAddrs > maxMaxEntries {
		errs = append(errs, fmt.Errorf("sslpersist: MaxAddrs is %d: want 1 to %d, or 0 for MaxEntries", s.MaxAddrs, maxMaxEntries))
	}
	return errors.Join(errs...)
}
