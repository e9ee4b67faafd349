mod kept;
