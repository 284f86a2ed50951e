package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/healthchecktest"
)

// kept returns how much of a reply an error keeps.
func kept(err error) int {
	n := len(err.Error())
	if cut, ok := errors.AsType[*cutError](err); ok {
		n = max(n, len(cut.seen))
	}
	if m, ok := errors.AsType[*healthcheck.MismatchError](err); ok {
		n = max(n, len(m.Got))
	}
	return n
}

// TestErrorsKeepLittle: results live as long as a target fails, so a hostile server must not fill the memory by them.
func TestErrorsKeepLittle(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 60_000)
	ldap := append([]byte{0x30, 0x82, byte(len(long) >> 8), byte(len(long) & 0xff)}, long...)
	for name, row := range map[string]struct {
		p     healthcheck.Prober
		reply string
		open  bool // the connection stays
	}{
		"smtp, a line":             {SMTP{}, long + "\r\n", true},
		"smtp, cut":                {SMTP{}, long, false},
		"smtp, cut in the second":  {SMTP{}, "220-" + long[:30_000] + "\r\n" + "220-" + long[:20_000], false},
		"pop3, silent":             {POP3{}, long, true},
		"http, a line":             {HTTP{}, long + "\r\n", true},
		"http, cut":                {HTTP{}, "HTTP/1.1 200 OK\r\n" + long, false},
		"http, a bad status":       {HTTP{}, "HTTP/1.1 500 " + long + "\r\n\r\n", true},
		"ldap":                     {LDAP{}, string(ldap), true},
		"ldap, cut":                {LDAP{}, string(ldap[:50_000]), false},
		"script":                   {Script{Steps: []Step{{Expect: []byte("y")}}}, long, false},
		"script, not":              {Script{Steps: []Step{{Expect: []byte("y"), Not: true}}}, long + "y", false},
		"agent":                    {Agent{}, long[:4000] + "\n", true},
		"agent, why":               {Agent{}, "down #" + long[:4000] + "\n", true},
		"redis":                    {Redis{}, "-ERR " + long + "\r\n", true},
		"pnm":                      {PNM{}, long, false},
		"mysql":                    {MySQL{}, "\xa0\x0f\x00\x00\xff\x01\x01" + long[:3997], true},
		"postgres":                 {Postgres{}, "E\x00\x00\x3a\x98M" + long[:14_990] + "\x00\x00\x00\x00\x00", true},
		"imap, another line first": {IMAP{}, long + "\r\n", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := healthchecktest.Serve(t, func(c net.Conn) {
				_, _ = io.WriteString(c, row.reply)
				if row.open {
					_, _ = io.Copy(io.Discard, c)
				} else if tc, ok := c.(*net.TCPConn); ok {
					_ = tc.CloseWrite()
					_, _ = io.Copy(io.Discard, c)
				}
			})
			for _, res := range results(t, row.p, a) {
				require.Equal(t, healthcheck.Fail, res.Verdict)
				require.LessOrEqual(t, kept(res.Err), 5000, fmt.Sprintf("%.200v", res.Err))
				require.LessOrEqual(t, len(res.Note), 1000)
			}
		})
	}
}

// results are those of a probe that is called, and of one that is started.
func results(t *testing.T, p healthcheck.Prober, a netip.AddrPort) (all []healthcheck.Result) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	all = append(all, p.Probe(ctx, a))
	if _, ok := p.(healthcheck.Starter); ok {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		all = append(all, healthchecktest.Started(t, p).Probe(ctx, a))
	}
	return all
}
