package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/lbprim/lbprim/internal/testenv"
)

// dnsServer answers every question for an address with one, and all others with a refusal.
func dnsServer(t *testing.T) string {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	go func() {
		b := make([]byte, 1500)
		for {
			n, from, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(b[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			m.RCode = dnsmessage.RCodeRefused
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				m.RCode = dnsmessage.RCodeSuccess
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 60}, Body: &dnsmessage.AResource{A: [4]byte{192, 0, 2, 7}},
				}}
			}
			r, _ := m.Pack() // it came from packed ones
			_, _ = c.WriteTo(r, from)
		}
	}()
	return c.LocalAddr().String()
}

// What binary protocols say is shown in words.
func TestProbeReadsBinaryProtocols(t *testing.T) {
	at := dnsServer(t)
	status, out, errs := run(t, "probe", "dns", at, "name=www.example.com")
	require.Zerof(t, status, "%s%s", out, errs)
	require.Regexp(t, `> \[DNS query \d+: A www\.example\.com\., \d+ bytes\]\n(.*\n)*.*< \[DNS answer \d+: A www\.example\.com\., Success, www\.example\.com\. A 192\.0\.2\.7, \d+ bytes\]`, out)
	status, out, _ = run(t, "probe", "dns", at, "zone=example.com")
	require.Equal(t, 1, status)
	require.Regexp(t, `< \[DNS answer \d+: SOA example\.com\., Refused, \d+ bytes\]`, out)

	for _, c := range []struct {
		read func([]byte) (string, bool)
		b    string
		want string
	}{
		{tftpLine, "\x00\x01boot.img\x00octet\x00", `[TFTP read request ["boot.img" "octet"], 17 bytes]`},
		{tftpLine, "\x00\x03\x00\x01abc", "[TFTP data, block 1, 7 bytes]"},
		{tftpLine, "\x00\x04\x00\x01", "[TFTP acknowledgement of block 1, 4 bytes]"},
		{tftpLine, "\x00\x05\x00\x01File not found\x00", `[TFTP error 1 "File not found", 19 bytes]`},
		{tftpLine, "\x00\x06blksize\x00512\x00", `[TFTP options ["blksize" "512"], 14 bytes]`},
		{tftpLine, "\x00\x09\x00\x01", ""},
		{tftpLine, "\x00", ""},
		{radiusLine, "\x01\x07\x00\x1b0123456789abcdef\x01\x07alice", "[RADIUS Access-Request id 7: User-Name, 27 bytes]"},
		{radiusLine, "\x02\x07\x00\x140123456789abcdef", "[RADIUS Access-Accept id 7: , 20 bytes]"},
		{radiusLine, "\x02", ""},
		{dnsLine, "short", ""},
	} {
		line, ok := c.read([]byte(c.b))
		require.Equal(t, c.want != "", ok, "%q", c.b)
		require.Equal(t, c.want, line)
	}
}

// A real server, whose answers come from another port than the one that was asked.
func TestProbeReadsTFTP(t *testing.T) {
	h := newHosts(t)
	bin := testenv.NeedServers(t, "in.tftpd")[0]
	dir, err := os.MkdirTemp("", "tftp")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))                                                 //nolint:gosec // the server is another user
	require.NoError(t, os.WriteFile(filepath.Join(dir, "boot.img"), []byte("image"), 0o644)) //nolint:gosec // likewise
	const at = "127.0.0.1:69"
	cmd := exec.Command(bin, "-L", "-4", "-a", at, "-s", dir)
	require.NoError(t, h.watcher.Do(cmd.Start))
	end(t, cmd)
	out := ""
	eventually(t, "the server answers", func() bool {
		status := 0
		status, out = h.run(t, "probe", "tftp", at, "file=boot.img")
		return status == 0
	})
	require.Regexp(t, `> \[UDP \d+ > \d+ \[TFTP read request \["boot\.img" "octet".*\]\n(.*\n)*.*< \[UDP \d+ > \d+ \[TFTP (data, block 1|options)`, out)
}
