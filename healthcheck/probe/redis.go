package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"github.com/lbprim/lbprim/healthcheck"
)

// Redis sends PING and wants PONG, after AUTH if a Password is set. The zero Redis
// works. It is a plain value, safe for concurrent use.
type Redis struct {
	Dialer   Dialer // nil: the system's choices
	User     string // needs a Password
	Password string
}

// Validate reports the faults of p.
func (p Redis) Validate() error {
	if p.User != "" && p.Password == "" {
		return errors.New("probe: Redis.Password: got none with a User, want the user's password")
	}
	return nil
}

// Probe implements [healthcheck.Prober].
func (p Redis) Probe(ctx context.Context, target netip.AddrPort) healthcheck.Result {
	if err := p.Validate(); err != nil {
		return invalid("redis", target, err)
	}
	return askOverTCP(ctx, "redis", p.Dialer, target, maxReply, p.talk)
}

func (p Redis) talk(s *stream) error {
	if p.Password != "" {
		s.step = "AUTH"
		words := []string{"AUTH", p.User, p.Password}
		if p.User == "" {
			words = []string{"AUTH", p.Password}
		}
		if err := s.redis("+OK", words...); err != nil {
			return err
		}
	}
	s.step = "PING"
	return s.redis("+PONG", "PING")
}

// redis sends a command as an array of bulk strings and wants a simple string.
func (s *stream) redis(want string, words ...string) error {
	b := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		b = strconv.AppendInt(append(b, '$'), int64(len(w)), 10)
		b = append(append(append(b, "\r\n"...), w...), "\r\n"...)
	}
	if err := s.send(b); err != nil {
		return err
	}
	return readRedis(s.reader, want)
}

func readRedis(r *reader, want string) error {
	line, err := r.readLine()
	if err == nil && string(line) != want {
		err = healthcheck.Mismatch(line, want)
	}
	return err
}
