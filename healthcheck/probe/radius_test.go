package probe_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/md5"
	"encoding/binary"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/healthcheck"
	"github.com/lbprim/lbprim/healthcheck/probe"
)

const key = "testing123"

// radiusReply is how a server answers. ma: 0 none, 1 right, 2 wrong.
type radiusReply struct {
	code  byte
	ma    int
	key   string
	idOff byte
	cut   int
}

// answer builds a reply by RFC 2865 section 3 and RFC 3579 section 3.2.
func (r radiusReply) answer(req []byte) []byte {
	b := []byte{r.code, req[1] + r.idOff, 0, 0}
	b = append(b, req[4:20]...)
	if r.ma != 0 {
		b = append(b, 80, 18)
		b = append(b, make([]byte, 16)...)
	}
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	if r.ma != 0 {
		mac := hmac.New(md5.New, []byte(r.key))
		mac.Write(b)
		copy(b[22:], mac.Sum(nil))
		if r.ma == 2 {
			b[22] ^= 1
		}
	}
	sum := md5.Sum(append(append([]byte{}, b...), r.key...))
	copy(b[4:], sum[:])
	return b[:len(b)-r.cut]
}

func TestRADIUS(t *testing.T) {
	zero := probe.RADIUS{Key: key}
	for _, row := range []struct {
		name   string
		prober probe.RADIUS
		reply  radiusReply
		err    string
		note   string
	}{
		{"accept without Message-Authenticator", zero, radiusReply{code: 2}, "", ""},
		{"accept with a right one", zero, radiusReply{code: 2, ma: 1}, "", ""},
		{"accept with a wrong one", zero, radiusReply{code: 2, ma: 2}, "a wrong Message-Authenticator", ""},
		{"none, required", probe.RADIUS{Key: key, RequireMessageAuthenticator: true}, radiusReply{code: 2}, "no Message-Authenticator", ""},
		{"right, required", probe.RADIUS{Key: key, RequireMessageAuthenticator: true}, radiusReply{code: 2, ma: 1}, "", ""},
		{"reject", zero, radiusReply{code: 3}, "", "reject counts as alive"},
		{"reject fails", probe.RADIUS{Key: key, RejectFails: true}, radiusReply{code: 3}, `radius: Access-Request: got "Access-Reject", want Access-Accept`, ""},
		{"challenge", zero, radiusReply{code: 11}, "", "challenge"},
		{"accounting", zero, radiusReply{code: 5}, "Accounting-Response", ""},
		{"status", probe.RADIUS{Key: key, StatusServer: true}, radiusReply{code: 2, ma: 1}, "", ""},
		{"status, accounting port", probe.RADIUS{Key: key, StatusServer: true}, radiusReply{code: 5, ma: 1}, "", ""},
		{"status, reject", probe.RADIUS{Key: key, StatusServer: true}, radiusReply{code: 3, ma: 1}, "Access-Reject", ""},
		{"wrong authenticator", zero, radiusReply{code: 2, key: "other"}, "a wrong response authenticator", ""},
		{"wrong identifier", zero, radiusReply{code: 2, idOff: 1}, "ignoring a reply: identifier", ""},
		{"cut", zero, radiusReply{code: 2, ma: 1, cut: 3}, "length 38 in 35 bytes", ""},
		{"short", zero, radiusReply{code: 2, cut: 5}, "a packet of at least 20 bytes", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if row.reply.key == "" {
				row.reply.key = key
			}
			if row.reply.idOff != 0 { // until the deadline
				synctest.Test(t, func(t *testing.T) {
					p := row.prober
					p.Dialer = datagrams(func(b []byte) [][]byte { return [][]byte{row.reply.answer(b)} })
					res := p.Probe(within(t, patience), target)
					require.Equal(t, healthcheck.Fail, res.Verdict)
					require.ErrorContains(t, res.Err, row.err)
				})
				return
			}
			for _, host := range loopbacks {
				got := make(chan []byte, 10)
				res := row.prober.Probe(within(t, patience), udpServer(t, host, func(b []byte) [][]byte {
					got <- bytes.Clone(b)
					return [][]byte{row.reply.answer(b)}
				}))
				if row.err == "" {
					require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
					require.Contains(t, res.Note, row.note)
					checkRADIUSRequest(t, <-got)
				} else {
					require.Equal(t, healthcheck.Fail, res.Verdict)
					require.ErrorContains(t, res.Err, row.err)
				}
			}
		})
	}
}

// checkRADIUSRequest wants Message-Authenticator first, and right.
func checkRADIUSRequest(t *testing.T, b []byte) {
	require.EqualValues(t, len(b), binary.BigEndian.Uint16(b[2:]))
	require.Equal(t, []byte{80, 18}, b[20:22])
	c := append([]byte{}, b...)
	clear(c[22:38])
	mac := hmac.New(md5.New, []byte(key))
	mac.Write(c)
	require.Equal(t, mac.Sum(nil), b[22:38])
}

func TestRADIUSRetries(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var tries atomic.Int32
		res := probe.RADIUS{Key: key, Dialer: datagrams(func(b []byte) [][]byte {
			if tries.Add(1) < 3 {
				return nil
			}
			return [][]byte{radiusReply{code: 2, key: key}.answer(b)}
		})}.Probe(within(t, 900*time.Millisecond), target)
		require.Equal(t, healthcheck.Pass, res.Verdict, "%v", res.Err)
		require.EqualValues(t, 3, tries.Load())
	})

	res := probe.RADIUS{Key: key}.Probe(within(t, patience), closedUDP(t, "127.0.0.1"))
	require.Equal(t, healthcheck.Fail, res.Verdict)
	require.ErrorIs(t, res.Err, syscall.ECONNREFUSED)
	require.GreaterOrEqual(t, res.Latency, 200*time.Millisecond, "unreachable is tried again")
}

func TestMissingFields(t *testing.T) {
	for field, p := range map[string]healthcheck.Prober{
		"RADIUS.Key":      probe.RADIUS{},
		"TFTP.File":       probe.TFTP{},
		"Command.Path":    probe.Command{},
		"LDAP.DN":         probe.LDAP{Password: "x"},
		"LDAP.Version":    probe.LDAP{Version: 4},
		"Redis.Password":  probe.Redis{User: "x"},
		"SMTP.Hello":      probe.SMTP{Hello: "a b"},
		"UDP.Wait":        probe.UDP{Wait: -1},
		"ICMP.Size":       probe.ICMP{Size: 3},
		"DNS.Expect":      probe.DNS{Expect: nil, RCodes: []uint8{77}, Name: "x", IPv6: true},
		"GRPC.Authority":  probe.GRPC{Authority: "\n"},
		"MySQL.User":      probe.MySQL{User: "\x00"},
		"Postgres.User":   probe.Postgres{User: "\x00"},
		"RTSP.URL":        probe.RTSP{URL: "rtsp://a b"},
		"TLS.MinValidity": probe.TLS{MinValidity: -1},
		"ServerName":      probe.TLSHello{ServerName: "a b"},
		"Resend":          probe.TCPHalfOpen{Resend: -1},
		"Steps[0]":        probe.Script{Steps: []probe.Step{{}}},
	} {
		t.Run(field, func(t *testing.T) {
			res := p.Probe(t.Context(), target)
			require.Equal(t, healthcheck.Inconclusive, res.Verdict)
			require.ErrorIs(t, res.Err, healthcheck.ErrLocal)
			if field == "DNS.Expect" {
				field = "DNS.RCodes"
			}
			require.ErrorContains(t, res.Err, field)
		})
	}
}
