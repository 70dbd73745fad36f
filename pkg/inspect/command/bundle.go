package command

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-nftproxy/kube-nftproxy/pkg/inspect/control"
)

func newBundleCommand() *cobra.Command {
	var q question
	var file string
	cmd := &cobra.Command{
		Use: "bundle", Short: "Write an archive for a bug report, without secrets", Args: cobra.NoArgs,
		Long: `bundle writes a tar.gz file with the output of status, services, verify and preflight, the configuration, flags,
metrics, problems, tables as nft text, chains of other programs, routes, versions, sysctls and goroutines. If the log is
a file, bundle adds its last MiB. Otherwise, log.txt has the commands that save the log and the Events. The archive
contains names and addresses of Services, endpoints and clients, but no kubeconfig, token or certificate.

Without -o, bundle writes the file into the current folder. If that folder is not writable, as in most pods, it writes the file into
the folder of the control socket.`,
		Example: `  kube-nftproxy bundle
  kubectl -n kube-system exec POD -- kube-nftproxy bundle -o - > bundle.tar.gz`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "-" {
				return q.patient().Copy(cmd.Context(), os.Stdout, control.PageBundle)
			}
			if file != "" {
				return q.write(cmd, file)
			}
			name := "kube-nftproxy-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
			var notWritable *fs.PathError
			err := q.write(cmd, name)
			if errors.As(err, &notWritable) {
				err = q.write(cmd, filepath.Join(filepath.Dir(q.path()), name))
			}
			if errors.As(err, &notWritable) {
				return fmt.Errorf("%w; to write the archive to standard output: kube-nftproxy bundle -o - > "+
					"bundle.tar.gz", err)
			}
			return err
		},
	}
	q.socketFlag(cmd)
	const usage = "Output file; - for standard output. Default: a file with the time in its name."
	cmd.Flags().StringVarP(&file, "output", "o", "", usage)
	cmd.Flags().StringVarP(&file, "file", "f", "", usage)
	cmd.Flags().Lookup("file").Hidden = true // the name of the flag in earlier versions
	return cmd
}

// write writes the archive to a file and prints its name. It removes the file after an error.
func (q *question) write(cmd *cobra.Command, file string) (err error) {
	to, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	err = q.patient().Copy(cmd.Context(), to, control.PageBundle)
	if closed := to.Close(); err == nil {
		err = closed
	}
	if err != nil {
		_ = os.Remove(file)
		return err
	}
	_, err = fmt.Println(file)
	return err
}
