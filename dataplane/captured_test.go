package dataplane

import (
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/lbprim/lbprim/internal/testenv"
	"github.com/lbprim/lbprim/internal/wire"
)

// captured returns the IP packets of all packet captures.
func captured(t testing.TB) (out [][]byte) {
	files, err := filepath.Glob(filepath.Join(testenv.Shared(t), "packets", "*.pcap"))
	require.NoError(t, err)
	more, err := filepath.Glob(filepath.Join(testenv.Shared(t), "packets", "copyleft", "*.pcap"))
	require.NoError(t, err)
	files = append(files, more...)
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		var r interface {
			gopacket.PacketDataSource
			LinkType() layers.LinkType
		}
		if plain, err := pcapgo.NewReader(f); err == nil {
			plain.SetSnaplen(1 << 20)
			r = plain
		} else {
			_, err = f.Seek(0, io.SeekStart)
			require.NoError(t, err)
			r, err = pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
			require.NoError(t, err, name)
		}
		for {
			b, _, err := r.ReadPacketData()
			if err != nil {
				break
			}
			switch r.LinkType() {
			case layers.LinkTypeEthernet:
				if e, s := wire.ParseEthernet(b); s == wire.OK && (e.Type == wire.EtherIPv4 || e.Type == wire.EtherIPv6) && len(b) > e.L3 {
					out = append(out, b[e.L3:])
				}
			case layers.LinkTypeRaw, 12:
				out = append(out, b)
			case layers.LinkTypeLinuxSLL:
				if len(b) > 16 && binary.BigEndian.Uint16(b[14:]) == wire.EtherIPv4 {
					out = append(out, b[16:])
				}
			}
		}
		f.Close()
	}
	require.Greater(t, len(out), 2000)
	return out
}
